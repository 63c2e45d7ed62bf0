/* The lengths at which adamw and the sum of squares are checked: one element, tails, more than one block. */
#ifndef AG_ADAMW_CASES_H
#define AG_ADAMW_CASES_H

/*    n   */
#define AG_ADAMW_CASES(X) \
    X(1)                  \
    X(7)                  \
    X(33)                 \
    X(1000)               \
    X(9216)               \
    X(100003)

#endif
