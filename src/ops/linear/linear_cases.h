/* The sizes at which linear is checked (LINEAR_CASES) and timed (LINEAR_SHAPES). */
#ifndef AG_LINEAR_CASES_H
#define AG_LINEAR_CASES_H

/* One element; tails of rows (6, 14, 16 and 32 at a time), of columns (32) and of depth (2, 32); both sides of AG_LINEAR_FEW;
 * groups of panels; more than one block of depth (1536 at most), than one part of depth (4096) and than one part of rows (1024).
 * K is rounded up to the weight type's block.
 *      T     K     N   */
#define AG_LINEAR_CASES(X) \
    X(1,    1,    1)       \
    X(1,    64,   33)      \
    X(2,    33,   5)       \
    X(3,    600,  70)      \
    X(5,    31,   32)      \
    X(7,    95,   64)      \
    X(8,    130,  31)      \
    X(9,    7,    3)       \
    X(14,   64,   32)      \
    X(15,   65,   65)      \
    X(17,   100,  31)      \
    X(33,   258,  97)      \
    X(47,   1100, 40)      \
    X(64,   64,   1600)    \
    X(10,   4500, 33)      \
    X(1030, 40,   20)

/* SmolLM2-135M and a 1.08 B Llama: q and o, k and v, gate and up, down, head.
 *   N       K   */
#define AG_LINEAR_SHAPES(X) \
    X(576,    576)          \
    X(192,    576)          \
    X(1536,   576)          \
    X(576,    1536)         \
    X(49152,  576)          \
    X(2048,   1536)         \
    X(256,    1536)         \
    X(1536,   2048)         \
    X(4608,   1536)         \
    X(1536,   4608)         \
    X(130560, 1536)

#endif
