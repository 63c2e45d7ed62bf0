/* The sizes at which lora is checked: one of everything, tails of rows, panels and ranks, more than one block and group, and
 * (scaled in T) the projections of real models. */
#ifndef AG_LORA_CASES_H
#define AG_LORA_CASES_H

/*    T    K     N     R   */
#define AG_LORA_CASES(X)    \
    X(1,   1,    1,    1)   \
    X(3,   7,    5,    2)   \
    X(1,   576,  192,  16)  \
    X(5,   65,   63,   3)   \
    X(4,   150,  70,   21)  \
    X(33,  64,   130,  8)   \
    X(31,  100,  48,   17)  \
    X(64,  192,  576,  32)  \
    X(70,  96,   64,   64)  \
    X(97,  576,  1536, 16)  \
    X(600, 80,   40,   4)

#endif
