/* The sizes at which rope is checked: one pair, tails of every vector width, a block's edge, and the heads of real models. */
#ifndef AG_ROPE_CASES_H
#define AG_ROPE_CASES_H

/*    T    H   D   */
#define AG_ROPE_CASES(X) \
    X(1,   1,  2)        \
    X(3,   2,  6)        \
    X(5,   1,  34)       \
    X(16,  3,  64)       \
    X(17,  9,  64)       \
    X(33,  2,  80)       \
    X(512, 16, 128)

#endif
