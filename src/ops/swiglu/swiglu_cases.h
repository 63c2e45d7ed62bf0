/* The sizes at which swiglu is checked: one element, tails of every vector width, more than one block, widths of real models. */
#ifndef AG_SWIGLU_CASES_H
#define AG_SWIGLU_CASES_H

/*    T    F   */
#define AG_SWIGLU_CASES(X) \
    X(1,   1)              \
    X(1,   7)              \
    X(3,   17)             \
    X(5,   255)            \
    X(17,  1536)           \
    X(64,  4608)

#endif
