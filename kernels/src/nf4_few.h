/* nf4_fwd for few tokens; the caller has checked the arguments. */
#ifndef BKL_NF4_FEW_H
#define BKL_NF4_FEW_H

#include "device.h"

enum { NF4_FEW = 8 };

bkl_status bkl_nf4_few(bkl_stream *stream, const bkl_nf4_fwd_args *args);

#endif
