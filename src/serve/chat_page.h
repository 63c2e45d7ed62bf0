/* The page at /: src/serve/page/chat.html as it is in the tree, put into the program by cmake/embed.cmake. */
#ifndef AG_CHAT_PAGE_H
#define AG_CHAT_PAGE_H

#include <stddef.h>

extern const char ag_chat_page[];
extern const size_t ag_chat_page_bytes;

#endif
