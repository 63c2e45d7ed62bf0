/* Filters on sequences, for the table in template_filters.c. Each is what jinja2's filter of that name is. */
#ifndef AG_TEMPLATE_FILTERS_H
#define AG_TEMPLATE_FILTERS_H

#include "text/template_run.h"

ag_tval ag_filter_length(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_join(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_items(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_list(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_map(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_select(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_reject(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_selectattr(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_rejectattr(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_dictsort(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_sort(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_unique(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_min(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_max(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_sum(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_first(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_last(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_reverse(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_groupby(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_batch(ag_trun *r, ag_tval v, const ag_targs *args);
ag_tval ag_filter_slice(ag_trun *r, ag_tval v, const ag_targs *args);

#endif
