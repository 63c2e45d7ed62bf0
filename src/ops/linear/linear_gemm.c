/* One product C = A·B at a time: threads pack A together, then take panels of B as they get free. Which thread takes which
 * panel, and into how many parts rows are cut, changes no bits: a column of C and a row of C never meet another one's sum. */
#include "ops/linear/linear_gemm.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    MAX_ROWS = 1024,   /* of A packed at once: bounds scratch, and a panel is dequantized once for so many tokens */
    MAX_DEPTH = 4096,  /* of A packed at once */
    UNITS_PER_THREAD = 4,
    MIN_BLOCKS_PER_PART = 4, /* row blocks for which packing a panel pays */
    GROUP = 4,         /* panels that a thread takes together at most: A then comes a quarter as often from a far cache */
    GROUP_BLOCKS = 4,  /* row blocks that stay in the near cache while a group's panels go over them */
    FEW_ROWS_MIN = 16, FEW_ROWS_MAX = 256 /* outputs a thread takes at a time when decoding: about an eighth of its share */
};

typedef struct {
    float *c;
    int64_t c_stride, n_cols, n_panels;
    const ag_weight *w;
    const float *bias;
} target;

typedef struct {
    const ag_linear_kernel *kernel;
    bool forward;
    const float *a;
    int64_t a_stride, n_rows, n_blocks;
    int64_t depth0, depth1, padded; /* the part of the depth that is packed now; filled up to depth_step */
    int64_t depth_block;
    bool add;
    float scale;
    target targets[AG_LINEAR_MAX];
    int n_targets;
    int64_t n_panels, group, n_parts; /* panels of all targets; how many a thread takes; parts of the rows */
    unsigned char *packed_a, *panels;
} product;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

/* A length in equal parts of at most `largest` (rounded up to `multiple`). Depends on the shape alone. */
static int64_t part_of(int64_t length, int64_t largest, int64_t multiple)
{
    return round_up(ceil_div(length, ceil_div(length, largest)), multiple);
}

static size_t a_block_bytes(const ag_linear_kernel *kernel, int64_t padded)
{
    return (size_t)round_up(kernel->row_block * padded * kernel->element_bytes, 64);
}

static size_t panel_bytes(const ag_linear_kernel *kernel, int64_t depth)
{
    return (size_t)min64(round_up(depth, kernel->depth_step), kernel->depth_block) * AG_LINEAR_COLS * (size_t)kernel->element_bytes;
}

/* Enough for at most so many rows and so much depth: parts of a longer call may be shorter than those of a shorter one. */
static size_t scratch_of(const ag_linear_kernel *kernel, int n_threads, int64_t rows, int64_t depth)
{
    const int64_t n_blocks = ceil_div(min64(rows, MAX_ROWS), kernel->row_block);
    const int64_t part = round_up(min64(depth, MAX_DEPTH), kernel->depth_step);
    return (size_t)n_blocks * a_block_bytes(kernel, part) + (size_t)n_threads * GROUP * panel_bytes(kernel, part);
}

size_t ag_linear_gemm_scratch(const ag_linear_kernel *kernel, int n_threads, int64_t T, int64_t K, int64_t N)
{
    size_t bytes = scratch_of(kernel, n_threads, T, K), bwd = scratch_of(kernel, n_threads, T, N);
    if (bwd > bytes) bytes = bwd;
    const size_t few = (size_t)min64(T, AG_LINEAR_FEW) * (size_t)K * sizeof(float);
    return few > bytes ? few : bytes;
}

/* The target of a panel, whose number becomes that among the target's own. */
static const target *target_of(const product *p, int64_t *panel)
{
    const target *t = p->targets;
    for (; *panel >= t->n_panels; t++) *panel -= t->n_panels;
    return t;
}

/* The panel's product with row blocks [block0,block1), depth [d,end). */
static void multiply_panel(const product *p, int64_t panel, int64_t block0, int64_t block1, int64_t d, int64_t end, const void *packed)
{
    const ag_linear_kernel *kernel = p->kernel;
    const target *t = target_of(p, &panel);
    const int64_t col = panel * AG_LINEAR_COLS, row = block0 * kernel->row_block;
    const size_t a_bytes = a_block_bytes(kernel, p->padded);
    const bool first = d == 0;
    kernel->multiply(&(ag_linear_block){
        .c = t->c + row * t->c_stride + col, .c_stride = t->c_stride,
        .n_rows = min64(block1 * kernel->row_block, p->n_rows) - row, .n_cols = (int)min64(t->n_cols - col, AG_LINEAR_COLS),
        .a = p->packed_a + (size_t)block0 * a_bytes + (size_t)((d - p->depth0) * kernel->row_block * kernel->element_bytes),
        .a_block_bytes = a_bytes, .panel = packed, .depth = round_up(end - d, kernel->depth_step),
        .add = p->add || !first, .scale = p->scale, .bias = first && t->bias ? t->bias + col : NULL});
}

/* Panels [panel0,panel1) of all targets, at most GROUP, against row blocks [block0,block1). */
static void run_group(const product *p, int64_t panel0, int64_t panel1, int64_t block0, int64_t block1, unsigned char *buffer)
{
    const ag_linear_kernel *kernel = p->kernel;
    const size_t bytes = panel_bytes(kernel, p->depth1 - p->depth0);
    for (int64_t d = p->depth0; d < p->depth1; d += p->depth_block) {
        const int64_t end = min64(d + p->depth_block, p->depth1);
        for (int64_t i = panel0; i < panel1; i++) {
            int64_t panel = i;
            const target *t = target_of(p, &panel);
            const int64_t col = panel * AG_LINEAR_COLS;
            (p->forward ? kernel->pack_fwd : kernel->pack_bwd)(buffer + (size_t)(i - panel0) * bytes, t->w, col,
                                                               (int)min64(t->n_cols - col, AG_LINEAR_COLS), d, end);
        }
        for (int64_t b = block0; b < block1; b += GROUP_BLOCKS)
            for (int64_t i = panel0; i < panel1; i++)
                multiply_panel(p, i, b, min64(b + GROUP_BLOCKS, block1), d, end, buffer + (size_t)(i - panel0) * bytes);
    }
}

static void run_product(const product *p, int n_threads)
{
    const ag_linear_kernel *kernel = p->kernel;
    const int64_t n_groups = ceil_div(p->n_panels, p->group), per_part = ceil_div(p->n_blocks, p->n_parts);
    const size_t a_bytes = a_block_bytes(kernel, p->padded);
#pragma omp parallel num_threads(n_threads)
    {
        int thread = 0;
#ifdef _OPENMP
        thread = omp_get_thread_num();
#endif
        if (kernel->thread_begin) kernel->thread_begin();
#pragma omp for schedule(static)
        for (int64_t b = 0; b < p->n_blocks; b++)
            kernel->pack_a(p->packed_a + (size_t)b * a_bytes, p->a + b * kernel->row_block * p->a_stride + p->depth0, p->a_stride,
                           min64(p->n_rows - b * kernel->row_block, kernel->row_block), p->depth1 - p->depth0);
#pragma omp for schedule(dynamic)
        for (int64_t u = 0; u < n_groups * p->n_parts; u++) {
            const int64_t panel = u % n_groups * p->group, block = u / n_groups * per_part;
            if (block < p->n_blocks)
                run_group(p, panel, min64(panel + p->group, p->n_panels), block, min64(block + per_part, p->n_blocks),
                          p->panels + (size_t)thread * GROUP * panel_bytes(kernel, p->depth1 - p->depth0));
        }
        if (kernel->thread_end) kernel->thread_end();
    }
}

/* The most panels a thread can take together without one having more to do than another. */
static int64_t group_of(int64_t n_panels, int n_threads)
{
    for (int64_t group = GROUP; group > 1; group--) {
        const int64_t n_groups = ceil_div(n_panels, group), longest = ceil_div(n_groups, n_threads) * group;
        if (n_groups >= 3 * n_threads && longest <= ceil_div(n_panels, n_threads)) return group;
    }
    return 1;
}

/* All of A [T,depth] against the targets: rows and depth in parts that fit the scratch. */
static void run_all(const ag_backend *be, product *p, const float *a, int64_t T, int64_t depth)
{
    const ag_linear_kernel *kernel = p->kernel;
    const int n_threads = be->n_threads;
    float *c[AG_LINEAR_MAX];
    p->n_panels = 0;
    for (int i = 0; i < p->n_targets; i++) {
        target *t = &p->targets[i];
        c[i] = t->c;
        t->n_panels = ceil_div(t->n_cols, AG_LINEAR_COLS);
        p->n_panels += t->n_panels;
    }
    p->group = group_of(p->n_panels, n_threads);
    p->a_stride = depth;
    p->depth_block = part_of(depth, kernel->depth_block, kernel->depth_step);
    const int64_t part = part_of(depth, MAX_DEPTH, kernel->depth_step), rows = part_of(T, MAX_ROWS, kernel->row_block);
    for (int64_t t0 = 0; t0 < T; t0 += rows) {
        p->a = a + t0 * depth;
        p->n_rows = min64(T - t0, rows);
        p->n_blocks = ceil_div(p->n_rows, kernel->row_block);
        p->n_parts = 1;
        if (n_threads > 1 && p->n_panels < UNITS_PER_THREAD * n_threads) {
            p->n_parts = ceil_div(UNITS_PER_THREAD * n_threads, p->n_panels);
            p->n_parts = min64(p->n_parts, ceil_div(p->n_blocks, MIN_BLOCKS_PER_PART));
        }
        for (int i = 0; i < p->n_targets; i++) p->targets[i].c = c[i] + t0 * p->targets[i].c_stride;
        for (p->depth0 = 0; p->depth0 < depth; p->depth0 = p->depth1) {
            p->depth1 = min64(p->depth0 + part, depth);
            p->padded = round_up(p->depth1 - p->depth0, kernel->depth_step);
            p->packed_a = be->scratch.data;
            p->panels = p->packed_a + (size_t)p->n_blocks * a_block_bytes(kernel, p->padded);
            run_product(p, n_threads);
        }
    }
}

void ag_linear_gemm_fwd(const ag_backend *be, const ag_linear_kernel *kernel, const ag_linear_fwd_args *a)
{
    product p = {.kernel = kernel, .forward = true, .add = a->accumulate, .scale = a->scale, .n_targets = a->n};
    for (int i = 0; i < a->n; i++)
        p.targets[i] = (target){.c = a->y[i].data, .c_stride = a->w[i]->N, .n_cols = a->w[i]->N, .w = a->w[i], .bias = a->bias[i]};
    run_all(be, &p, a->x.data, a->x.dim[0], a->x.dim[1]);
}

void ag_linear_gemm_bwd(const ag_backend *be, const ag_linear_kernel *kernel, const ag_linear_bwd_args *a)
{
    const int64_t T = a->dx.dim[0], K = a->dx.dim[1];
    for (int i = 0; i < a->n; i++) {
        product p = {.kernel = kernel, .add = a->accumulate || i > 0, .scale = a->scale, .n_targets = 1};
        p.targets[0] = (target){.c = a->dx.data, .c_stride = K, .n_cols = K, .w = a->w[i]};
        run_all(be, &p, a->dy[i].data, T, a->w[i]->N);
    }
}

void ag_linear_few(const ag_backend *be, const ag_linear_kernel *kernel, const ag_linear_fwd_args *a)
{
    const void *x = a->x.data;
    if (kernel->few_x) {
        kernel->few_x(be->scratch.data, a->x.data, a->x.dim[0] * a->x.dim[1]);
        x = be->scratch.data;
    }
#pragma omp parallel num_threads(be->n_threads)
    for (int i = 0; i < a->n; i++) {
        const int64_t N = a->w[i]->N, share = N / (8 * be->n_threads);
        const int64_t n_rows = share < FEW_ROWS_MIN ? FEW_ROWS_MIN : min64(share, FEW_ROWS_MAX);
#pragma omp for schedule(dynamic) nowait
        for (int64_t n = 0; n < N; n += n_rows) kernel->few(a, x, i, n, min64(n + n_rows, N));
    }
}
