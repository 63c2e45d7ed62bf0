#include "train/trainer_state.h"

#include "base/fs.h"
#include "format/torch_archive.h"

#include <math.h>
#include <string.h>

static const char SCHEDULER_NAME[] = "scheduler.pt", RNG_NAME[] = "rng_state.pth";

/* ---- scheduler.pt ------------------------------------------------------------------------------------------------------------- */

/* One value for each of the optimizer's groups: `all`, or `one` twice. */
static ag_torch_value *rates(ag_arena *a, double one, const double *all, int n_groups)
{
    ag_torch_value *list = ag_torch_list(a);
    for (int g = 0; g < (n_groups ? n_groups : 2); g++) ag_torch_push(a, list, ag_torch_float(a, n_groups ? all[g] : one));
    return list;
}

ag_status ag_scheduler_save(const ag_scheduler_state *s, const char *dir, ag_err *err)
{
    ag_arena a = {0};
    ag_torch_value *root = ag_torch_dict(&a), *lambdas = ag_torch_list(&a);
    /* none, as torch writes a schedule that is a plain function: it keeps its own */
    for (int g = 0; g < (s->n_groups ? s->n_groups : 2); g++) ag_torch_push(&a, lambdas, ag_torch_none(&a));
    ag_torch_put(&a, root, "base_lrs", rates(&a, s->base_lr, s->base_lrs, s->n_groups));
    ag_torch_put(&a, root, "last_epoch", ag_torch_int(&a, s->step));
    ag_torch_put(&a, root, "_step_count", ag_torch_int(&a, s->step + 1));
    ag_torch_put(&a, root, "_is_initial", ag_torch_bool(&a, false));
    ag_torch_put(&a, root, "_get_lr_called_within_step", ag_torch_bool(&a, false));
    ag_torch_put(&a, root, "_last_lr", rates(&a, s->last_lr, s->last_lrs, s->n_groups));
    ag_torch_put(&a, root, "lr_lambdas", lambdas);
    ag_status status = ag_torch_save(ag_path_join(&a, dir, SCHEDULER_NAME), root, err);
    ag_arena_free(&a);
    return status;
}

static ag_status read_count(const ag_torch_value *root, const char *key, int64_t expected, ag_arena *a, ag_err *err)
{
    const ag_torch_value *v = ag_torch_get(root, key);
    if (ag_torch_is(v, AG_TORCH_INT) && v->integer == expected) return AG_OK;
    return ag_fail(err, AG_E_FORMAT, "'%s' must be %lld at this checkpoint's step, found %s", key, (long long)expected,
                   ag_torch_describe(a, v));
}

/* all: room for n_wanted rates, where that is not 0. */
static ag_status read_rate(double *out, double *all, int n_wanted, uint32_t *n_groups, const ag_torch_value *root, const char *key, ag_arena *a,
                           ag_err *err)
{
    const ag_torch_value *list = ag_torch_get(root, key);
    if (!ag_torch_is(list, AG_TORCH_LIST) || list->n == 0)
        return ag_fail(err, AG_E_FORMAT, "'%s' must be a list with a rate for each group, found %s", key, ag_torch_describe(a, list));
    if (n_wanted && list->n != (uint32_t)n_wanted)
        return ag_fail(err, AG_E_SHAPE, "'%s' has %u groups, this run has %d; it belongs to another optimizer", key, list->n, n_wanted);
    for (uint32_t i = 0; i < list->n; i++) {
        const ag_torch_value *v = list->items[i];
        double rate = ag_torch_is(v, AG_TORCH_FLOAT) ? v->real : ag_torch_is(v, AG_TORCH_INT) ? (double)v->integer : -1;
        if (!(rate >= 0) || !isfinite(rate))
            return ag_fail(err, AG_E_FORMAT, "'%s' must hold learning rates, found %s", key, ag_torch_describe(a, v));
        if (n_wanted) all[i] = rate;
        if (n_wanted && i > 0) continue;
        if (i > 0 && rate != *out)
            return ag_fail(err, AG_E_UNSUPPORTED, "'%s' differs between the groups; one learning rate for all is supported", key);
        *out = rate;
    }
    *n_groups = list->n;
    return AG_OK;
}

static ag_status read_scheduler(ag_scheduler_state *s, const ag_torch_value *root, int64_t step, ag_arena *a, ag_err *err)
{
    uint32_t n_base, n_last;
    AG_TRY(read_count(root, "last_epoch", step, a, err));
    AG_TRY(read_count(root, "_step_count", step + 1, a, err));
    AG_TRY(read_rate(&s->base_lr, s->base_lrs, s->n_groups, &n_base, root, "base_lrs", a, err));
    AG_TRY(read_rate(&s->last_lr, s->last_lrs, s->n_groups, &n_last, root, "_last_lr", a, err));
    if (n_base != n_last) return ag_fail(err, AG_E_FORMAT, "'base_lrs' has %u groups, '_last_lr' has %u", n_base, n_last);
    s->step = step;
    return AG_OK;
}

ag_status ag_scheduler_load(ag_scheduler_state *s, const char *dir, int64_t step, ag_err *err)
{
    ag_arena a = {0};
    ag_torch_archive archive;
    const char *path = ag_path_join(&a, dir, SCHEDULER_NAME);
    ag_status status = ag_torch_open(&archive, path, 0, err);
    if (!status) {
        status = read_scheduler(s, archive.root, step, &a, err);
        if (status) (void)ag_err_prefix(err, "%s", path);
        ag_torch_close(&archive);
    }
    ag_arena_free(&a);
    return status;
}

/* ---- generators ----------------------------------------------------------------------------------------------------------------- */

enum { N = AG_MT19937_WORDS };

/* random.seed(n) runs init_by_array over n's 32-bit words (Matsumoto and Nishimura, mt19937ar.c, 2002); numpy.random.seed and
 * torch.manual_seed run init_genrand. */
static void seed_as_python(ag_mt19937 *mt, uint32_t key)
{
    ag_mt19937_seed(mt, 19650218);
    mt->seed = key;
    uint32_t *s = mt->state, i = 1;
    for (int k = 0; k < N; k++) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1664525u) + key;
        if (++i == N) {
            s[0] = s[N - 1];
            i = 1;
        }
    }
    for (int k = 0; k < N - 1; k++) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1566083941u) - i;
        if (++i == N) {
            s[0] = s[N - 1];
            i = 1;
        }
    }
    s[0] = 0x80000000u;
}

void ag_trainer_rng_seed(ag_trainer_rng *rng, uint32_t seed)
{
    seed_as_python(&rng->python, seed);
    ag_mt19937_seed(&rng->numpy, seed);
    ag_mt19937_seed(&rng->cpu, seed);
}

/* Python and NumPy say where the next word is, 624 when a twist comes first. */
static int64_t position_of(const ag_mt19937 *mt) { return mt->left == 1 ? N : mt->next; }

static void set_position(ag_mt19937 *mt, int64_t position)
{
    mt->next = (int32_t)position;
    mt->left = (int32_t)(N + 1 - position);
}

static void push_words(ag_arena *a, ag_torch_value *to, const ag_mt19937 *mt)
{
    for (int i = 0; i < N; i++) ag_torch_push(a, to, ag_torch_int(a, mt->state[i]));
}

/* random.getstate(): (3, (624 words, position), None) */
static ag_torch_value *make_python(ag_arena *a, const ag_mt19937 *mt)
{
    ag_torch_value *state = ag_torch_tuple(a), *words = ag_torch_tuple(a);
    push_words(a, words, mt);
    ag_torch_push(a, words, ag_torch_int(a, position_of(mt)));
    ag_torch_push(a, state, ag_torch_int(a, 3));
    ag_torch_push(a, state, words);
    ag_torch_push(a, state, ag_torch_none(a));
    return state;
}

/* numpy.random.get_state(): ("MT19937", words, position, has_gauss, cached_gaussian); set_state takes the words as a list too. */
static ag_torch_value *make_numpy(ag_arena *a, const ag_mt19937 *mt)
{
    ag_torch_value *state = ag_torch_tuple(a), *words = ag_torch_list(a);
    push_words(a, words, mt);
    ag_torch_push(a, state, ag_torch_string(a, "MT19937"));
    ag_torch_push(a, state, words);
    ag_torch_push(a, state, ag_torch_int(a, position_of(mt)));
    ag_torch_push(a, state, ag_torch_int(a, mt->has_normal));
    ag_torch_push(a, state, ag_torch_float(a, mt->cached_normal));
    return state;
}

ag_status ag_trainer_rng_save(const ag_trainer_rng *rng, const char *dir, ag_err *err)
{
    ag_arena a = {0};
    unsigned char cpu[AG_MT19937_SAVED_BYTES];
    ag_mt19937_save(&rng->cpu, cpu);
    ag_torch_value *root = ag_torch_dict(&a);
    ag_torch_put(&a, root, "python", make_python(&a, &rng->python));
    ag_torch_put(&a, root, "numpy", make_numpy(&a, &rng->numpy));
    ag_torch_put(&a, root, "cpu", ag_torch_tensor(&a, cpu, AG_TORCH_U8, 1, (int64_t[]){AG_MT19937_SAVED_BYTES}));
    ag_status status = ag_torch_save(ag_path_join(&a, dir, RNG_NAME), root, err);
    ag_arena_free(&a);
    return status;
}

static ag_status wrong_state(const char *which, ag_arena *a, const ag_torch_value *found, ag_err *err)
{
    return ag_fail(err, AG_E_FORMAT, "'%s' is no state of its generator (found %s)", which, ag_torch_describe(a, found));
}

static bool read_word(uint32_t *word, const ag_torch_value *v)
{
    if (!ag_torch_is(v, AG_TORCH_INT) || v->integer < 0 || v->integer > UINT32_MAX) return false;
    *word = (uint32_t)v->integer;
    return true;
}

static bool read_words(ag_mt19937 *mt, const ag_torch_value *v)
{
    if (ag_torch_is(v, AG_TORCH_U32_ARRAY)) {
        if (v->n_words != N) return false;
        for (size_t i = 0; i < N; i++) memcpy(&mt->state[i], v->words + 4 * i, 4);
        return true;
    }
    if ((!ag_torch_is(v, AG_TORCH_LIST) && !ag_torch_is(v, AG_TORCH_TUPLE)) || v->n < N) return false;
    for (size_t i = 0; i < N; i++)
        if (!read_word(&mt->state[i], v->items[i])) return false;
    return true;
}

static bool is_position(const ag_torch_value *v) { return ag_torch_is(v, AG_TORCH_INT) && v->integer >= 0 && v->integer <= N; }

static bool is_number_or_none(const ag_torch_value *v)
{
    return ag_torch_is(v, AG_TORCH_NONE) || ag_torch_is(v, AG_TORCH_FLOAT);
}

static ag_status read_python(ag_mt19937 *mt, const ag_torch_value *v, ag_arena *a, ag_err *err)
{
    *mt = (ag_mt19937){0};
    if (!ag_torch_is(v, AG_TORCH_TUPLE) || v->n != 3 || !ag_torch_is(v->items[0], AG_TORCH_INT) || v->items[0]->integer != 3 ||
        !ag_torch_is(v->items[1], AG_TORCH_TUPLE) || v->items[1]->n != N + 1 || !is_position(v->items[1]->items[N]) ||
        !is_number_or_none(v->items[2]) || !read_words(mt, v->items[1]))
        return wrong_state("python", a, v, err);
    set_position(mt, v->items[1]->items[N]->integer);
    return AG_OK;
}

static ag_status read_numpy(ag_mt19937 *mt, const ag_torch_value *v, ag_arena *a, ag_err *err)
{
    *mt = (ag_mt19937){0};
    if (!ag_torch_is(v, AG_TORCH_TUPLE) || v->n != 5 || !ag_torch_is(v->items[0], AG_TORCH_STRING) || strcmp(v->items[0]->text, "MT19937") ||
        !is_position(v->items[2]) || !ag_torch_is(v->items[3], AG_TORCH_INT) || !ag_torch_is(v->items[4], AG_TORCH_FLOAT) ||
        (!ag_torch_is(v->items[1], AG_TORCH_U32_ARRAY) && v->items[1]->n != N) || !read_words(mt, v->items[1]))
        return wrong_state("numpy", a, v, err);
    set_position(mt, v->items[2]->integer);
    mt->has_normal = v->items[3]->integer != 0;
    mt->cached_normal = v->items[4]->real;
    return AG_OK;
}

static bool is_byte_vector(const ag_torch_value *v)
{
    return ag_torch_is(v, AG_TORCH_TENSOR) && v->tensor->dtype == AG_TORCH_U8 && v->tensor->rank == 1 && ag_torch_is_contiguous(v->tensor);
}

/* A CUDA generator: the seed, and (in newer torch) an offset. */
static ag_status check_cuda(const ag_torch_value *v, ag_arena *a, ag_err *err)
{
    if (!v) return AG_OK;
    if (ag_torch_is(v, AG_TORCH_LIST) || ag_torch_is(v, AG_TORCH_TUPLE)) { /* one for each device */
        for (uint32_t i = 0; i < v->n; i++)
            if (!is_byte_vector(v->items[i])) return wrong_state("cuda", a, v, err);
        return AG_OK;
    }
    int64_t n = is_byte_vector(v) ? v->tensor->dim[0] : 0, offset = 0;
    if (n == 16) memcpy(&offset, (const unsigned char *)v->tensor->data + 8, sizeof offset);
    if ((n != 8 && n != 16) || offset < 0 || offset % 4) return wrong_state("cuda", a, v, err);
    return AG_OK;
}

static ag_status read_rng(ag_trainer_rng *rng, const ag_torch_value *root, ag_arena *a, ag_err *err)
{
    const ag_torch_value *cpu = ag_torch_get(root, "cpu");
    AG_TRY(read_python(&rng->python, ag_torch_get(root, "python"), a, err));
    AG_TRY(read_numpy(&rng->numpy, ag_torch_get(root, "numpy"), a, err));
    if (!is_byte_vector(cpu)) return wrong_state("cpu", a, cpu, err);
    ag_status status = ag_mt19937_load(&rng->cpu, cpu->tensor->data, (size_t)cpu->tensor->dim[0], err);
    if (status) {
        (void)ag_err_prefix(err, "'cpu'");
        return status;
    }
    return check_cuda(ag_torch_get(root, "cuda"), a, err);
}

ag_status ag_trainer_rng_load(ag_trainer_rng *rng, const char *dir, ag_err *err)
{
    ag_arena a = {0};
    ag_torch_archive archive;
    const char *path = ag_path_join(&a, dir, RNG_NAME);
    ag_status status = ag_torch_open(&archive, path, AG_TORCH_NUMPY | AG_TORCH_NEEDS_STORAGE, err);
    if (!status) {
        status = read_rng(rng, archive.root, &a, err);
        if (status) (void)ag_err_prefix(err, "%s", path);
        ag_torch_close(&archive);
    }
    ag_arena_free(&a);
    return status;
}
