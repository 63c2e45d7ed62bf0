/* The sizes at which the head is checked: one of everything, tails, one row and few (the decoding path of the products), more
 * than one block of ids (2,048) and of rows (1,024). */
#ifndef AG_HEAD_CE_CASES_H
#define AG_HEAD_CE_CASES_H

/*    M     C    V    */
#define AG_HEAD_CE_CASES(X) \
    X(1,    1,   2)         \
    X(3,    7,   50)        \
    X(1,    64,  2049)      \
    X(13,   33,  4100)      \
    X(40,   576, 2500)      \
    X(1030, 16,  70)

#endif
