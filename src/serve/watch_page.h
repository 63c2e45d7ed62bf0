/* The page of `watch`: src/serve/page/watch.html as it is in the tree, put into the program by cmake/embed.cmake. */
#ifndef AG_WATCH_PAGE_H
#define AG_WATCH_PAGE_H

#include <stddef.h>

extern const char ag_watch_page[];
extern const size_t ag_watch_page_bytes;

#endif
