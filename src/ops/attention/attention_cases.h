/* The problems at which attention is checked: one token, odd lengths, blocks' edges, spans with gaps between them, more keys
 * than queries, windows, all groupings and head dims of real models, a head dim that fits no vector, and scores far beyond
 * what exp can hold. */
#ifndef AG_ATTENTION_CASES_H
#define AG_ATTENTION_CASES_H

/* Layouts: WHOLE is one span of all T queries and S keys. PACKED needs S = T and has four spans with unused rows before,
 * between and behind them. EQUAL needs S = T and has three spans of T/3. CACHE has T spans of one query, each with its own
 * S/T keys. */
typedef enum { AG_ATTENTION_WHOLE, AG_ATTENTION_PACKED, AG_ATTENTION_EQUAL, AG_ATTENTION_CACHE } ag_attention_layout;

/*    T    S     H   G  D    layout  window  largest score, about */
#define AG_ATTENTION_CASES(X)              \
    X(1,   1,    1,  1, 1,   WHOLE,  0,   1)    \
    X(2,   2,    3,  1, 7,   WHOLE,  0,   1)    \
    X(17,  17,   9,  3, 64,  WHOLE,  0,   4)    \
    X(65,  65,   8,  1, 16,  WHOLE,  0,   4)    \
    X(33,  33,   8,  8, 80,  WHOLE,  0,   4)    \
    X(130, 130,  6,  2, 20,  WHOLE,  0,   4)    \
    X(257, 257,  9,  3, 64,  WHOLE,  0,   4)    \
    X(101, 101,  16, 2, 128, WHOLE,  0,   4)    \
    X(300, 300,  3,  1, 64,  WHOLE,  0,   4)    \
    X(128, 128,  2,  1, 64,  PACKED, 0,   4)    \
    X(291, 291,  9,  3, 64,  PACKED, 0,   4)    \
    X(301, 301,  4,  4, 33,  PACKED, 19,  4)    \
    X(600, 600,  6,  2, 16,  EQUAL,  0,   4)    \
    X(200, 200,  6,  2, 64,  WHOLE,  1,   4)    \
    X(259, 259,  6,  2, 64,  WHOLE,  70,  4)    \
    X(65,  193,  9,  3, 64,  WHOLE,  0,   4)    \
    X(40,  333,  8,  1, 128, WHOLE,  50,  4)    \
    X(1,   1000, 9,  3, 64,  WHOLE,  0,   4)    \
    X(1,   1537, 16, 2, 128, WHOLE,  0,   4)    \
    X(5,   900,  9,  3, 64,  WHOLE,  0,   4)    \
    X(8,   1111, 8,  8, 80,  WHOLE,  600, 4)    \
    X(3,   1800, 6,  2, 20,  CACHE,  0,   4)    \
    X(12,  2400, 6,  2, 64,  CACHE,  0,   4)    \
    X(257, 257,  4,  2, 64,  WHOLE,  0,   1e4)  \
    X(2,   1300, 4,  2, 64,  WHOLE,  0,   1e4)

#endif
