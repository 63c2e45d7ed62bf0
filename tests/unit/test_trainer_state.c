#define _GNU_SOURCE
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "format/torch_archive.h"
#include "train/trainer_state.h"

#include <math.h>
#include <unistd.h>

#define ARCHIVES AGOGE_TESTS_DIR "/golden/torch_archive"
#define STATES AGOGE_TESTS_DIR "/golden/trainer_state"

/* ---- trainer_state.json ------------------------------------------------------------------------------------------------------- */

static const ag_trainer_log golden_log[] = {
    {.step = 1, .epoch = 0.125, .loss = 2.5, .grad_norm = 1.25, .learning_rate = 0.0, .eval_loss = (double)NAN},
    {.step = 2, .epoch = 0.25, .loss = 0.1, .grad_norm = 1e-7, .learning_rate = 2e-4, .eval_loss = (double)NAN},
    {.step = 2, .epoch = 0.25, .loss = (double)NAN, .grad_norm = (double)NAN, .learning_rate = (double)NAN, .eval_loss = 1.0 / 3},
};
static const ag_trainer_state golden_state = {
    .global_step = 2, .max_steps = 8, .num_train_epochs = 1, .logging_steps = 1, .eval_steps = 2, .save_steps = 2, .train_batch_size = 4,
    .num_input_tokens_seen = 1234, .epoch = 0.25, .total_flos = 5.5e12, .best_metric = 1.0 / 3, .best_global_step = 2,
    .best_model_checkpoint = "runs/caf\xc3\xa9/checkpoint-2", .log = golden_log, .n_log = 3};

static void the_state_is_written_as_transformers_writes_it(void **state)
{
    (void)state;
    ag_err err;
    ag_arena a = {0};
    char *got, *want;
    size_t n_got, n_want;
    scratch_dir_create();
    must(ag_trainer_state_save(&golden_state, scratch_path("."), &err));
    must(ag_file_read(&got, &n_got, scratch_path("trainer_state.json"), 1 << 20, &a, &err));
    must(ag_file_read(&want, &n_want, STATES "/trainer_state.json", 1 << 20, &a, &err));
    assert_string_equal(want, got);
    scratch_dir_remove();
    ag_arena_free(&a);
}

static bool same_or_nan(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void the_state_of_transformers_is_read(void **state)
{
    (void)state;
    ag_err err;
    ag_arena a = {0};
    ag_trainer_state s;
    must(ag_trainer_state_load(&s, STATES, &a, &err));
    assert_true(s.global_step == 2 && s.max_steps == 8 && s.num_train_epochs == 1 && s.logging_steps == 1 && s.eval_steps == 2 &&
                s.save_steps == 2 && s.train_batch_size == 4 && s.num_input_tokens_seen == 1234 && s.epoch == 0.25 &&
                s.total_flos == 5.5e12 && s.best_metric == 1.0 / 3 && s.best_global_step == 2);
    assert_string_equal(golden_state.best_model_checkpoint, s.best_model_checkpoint);
    assert_int_equal(3, s.n_log);
    for (int i = 0; i < 3; i++) {
        const ag_trainer_log *got = &s.log[i], *want = &golden_log[i];
        assert_true(got->step == want->step && same_or_nan(got->epoch, want->epoch) && same_or_nan(got->loss, want->loss) &&
                    same_or_nan(got->grad_norm, want->grad_norm) && same_or_nan(got->learning_rate, want->learning_rate) &&
                    same_or_nan(got->eval_loss, want->eval_loss));
    }
    must(ag_trainer_state_load(&s, STATES "/nan", &a, &err)); /* Python's NaN; no best; a key in the log that we do not know */
    assert_true(isnan(s.log[1].grad_norm) && s.log[1].loss == 0.1 && isnan(s.best_metric) && s.best_global_step == -1);
    assert_null(s.best_model_checkpoint);
    ag_arena_free(&a);
}

static void refuse_state(const char *text, ag_status code, const char *says)
{
    ag_err err;
    ag_arena a = {0};
    ag_trainer_state s;
    must(ag_file_publish(scratch_path("trainer_state.json"), text, strlen(text), &err));
    must_fail(code, says, ag_trainer_state_load(&s, scratch_path("."), &a, &err));
    ag_arena_free(&a);
}

static void states_that_the_trainer_would_refuse_are_refused(void **state)
{
    (void)state;
    ag_err err;
    ag_arena a = {0};
    ag_trainer_state s;
    scratch_dir_create();
    must_fail(AG_E_NOT_FOUND, "trainer_state.json", ag_trainer_state_load(&s, scratch_path("."), &a, &err));
    refuse_state("{\"global_step\": 1, \"train_batch_size\": 1, \"agoge\": 1}", AG_E_FORMAT, "no key 'agoge'");
    refuse_state("{\"train_batch_size\": 1}", AG_E_FORMAT, "'global_step' is missing");
    refuse_state("{\"global_step\": 1}", AG_E_FORMAT, "'train_batch_size' is missing");
    refuse_state("{\"global_step\": true, \"train_batch_size\": 1}", AG_E_FORMAT, "found true");
    refuse_state("{\"global_step\": -1, \"train_batch_size\": 1}", AG_E_FORMAT, "found -1");
    refuse_state("{\"global_step\": 1, \"train_batch_size\": 0}", AG_E_FORMAT, "found 0");
    refuse_state("{\"global_step\": 1, \"train_batch_size\": 1, \"log_history\": {}}", AG_E_FORMAT, "must be an array");
    refuse_state("{\"global_step\": 1, \"train_batch_size\": 1, \"log_history\": [1]}", AG_E_FORMAT, "must be an object");
    refuse_state("[]", AG_E_FORMAT, "a JSON object was expected");
    refuse_state("", AG_E_FORMAT, "not valid JSON");
    char *large = ag_arena_alloc(&a, (4 << 20) + 2);
    memset(large, ' ', (4 << 20) + 1);
    refuse_state(large, AG_E_FORMAT, "at most 4194304 are read");
    assert_int_equal(0, unlink(scratch_path("trainer_state.json")));
    assert_int_equal(0, symlink(STATES "/trainer_state.json", scratch_path("trainer_state.json")));
    must_fail(AG_E_IO, "symbolic link", ag_trainer_state_load(&s, scratch_path("."), &a, &err));
    scratch_dir_remove();
    ag_arena_free(&a);
}

/* ---- optimizer.pt --------------------------------------------------------------------------------------------------------------- */

/* The two parameters of tools/golden/torch_archive.py. */
typedef struct {
    float avg[2][6], sq[2][6];
    ag_optimizer_param params[2];
    ag_optimizer_state state;
} two_params;

static void two_params_init(two_params *t)
{
    memset(t, 0x55, sizeof *t);
    t->params[0] = (ag_optimizer_param){.name = "a", .rank = 2, .dim = {2, 3}, .exp_avg = t->avg[0], .exp_avg_sq = t->sq[0]};
    t->params[1] = (ag_optimizer_param){.name = "b", .rank = 1, .dim = {4}, .exp_avg = t->avg[1], .exp_avg_sq = t->sq[1]};
    t->state = (ag_optimizer_state){.params = t->params, .n_params = 2};
}

static void check_golden_moments(const two_params *t)
{
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < (p ? 4 : 6); i++) {
            assert_true(t->avg[p][i] == (float)i * 0.5f - (float)p);
            assert_true(t->sq[p][i] == (float)i * 0.25f + (float)p);
        }
    assert_true(t->state.n_updates == 3 && t->state.lr == 1e-3 && t->state.initial_lr == 1e-3 && t->state.beta1 == 0.9 && t->state.beta2 == 0.999 &&
                t->state.eps == 1e-8 && t->state.weight_decay == 0.01);
}

static void moments_of_torch_are_read(void **state)
{
    (void)state;
    ag_err err;
    two_params t;
    two_params_init(&t);
    must(ag_optimizer_load(&t.state, ARCHIVES, 3, &err));
    check_golden_moments(&t);
    must_fail(AG_E_FORMAT, "a: 'step' is 3, a whole number from 1 to 2", ag_optimizer_load(&t.state, ARCHIVES, 2, &err));
}

static void bf16_moments_are_widened(void **state)
{
    (void)state;
    ag_err err;
    two_params t;
    two_params_init(&t);
    scratch_dir_create();
    ag_arena a = {0};
    char *bytes;
    size_t n;
    must(ag_file_read(&bytes, &n, ARCHIVES "/optimizer_bf16.pt", 1 << 20, &a, &err));
    must(ag_file_publish(scratch_path("optimizer.pt"), bytes, n, &err));
    ag_arena_free(&a);
    must(ag_optimizer_load(&t.state, scratch_path("."), 3, &err));
    check_golden_moments(&t);
    scratch_dir_remove();
}

static void moments_come_back_as_they_were_written(void **state)
{
    (void)state;
    ag_err err;
    two_params t, back;
    two_params_init(&t);
    two_params_init(&back);
    must(ag_optimizer_load(&t.state, ARCHIVES, 3, &err));
    scratch_dir_create();
    must(ag_optimizer_save(&t.state, scratch_path("."), &err));
    must(ag_optimizer_load(&back.state, scratch_path("."), 3, &err));
    check_golden_moments(&back);
    t.state.n_updates = 0; /* nothing was ever updated: as torch, no state */
    must(ag_optimizer_save(&t.state, scratch_path("."), &err));
    must(ag_optimizer_load(&back.state, scratch_path("."), 3, &err));
    assert_int_equal(0, back.state.n_updates);
    for (int i = 0; i < 6; i++) assert_true(back.avg[0][i] == 0 && back.sq[0][i] == 0 && (i > 3 || back.avg[1][i] == 0));
    scratch_dir_remove();
}

static void refuse_optimizer(two_params *t, ag_status code, const char *says)
{
    ag_err err;
    must_fail(code, says, ag_optimizer_load(&t->state, ARCHIVES, 3, &err));
    assert_true(strncmp(err.text, ARCHIVES, strlen(ARCHIVES)) == 0);
    two_params_init(t);
}

static void moments_of_another_adapter_are_refused(void **state)
{
    (void)state;
    two_params t;
    two_params_init(&t);
    t.params[0].dim[0] = 3, t.params[0].dim[1] = 2;
    refuse_optimizer(&t, AG_E_SHAPE, "a: 'exp_avg' is a tensor FloatStorage [2,3], this adapter needs a tensor FloatStorage [3,2]");
    t.params[1].rank = 2, t.params[1].dim[1] = 1;
    refuse_optimizer(&t, AG_E_SHAPE, "b: 'exp_avg' is a tensor FloatStorage [4]");
    t.state.n_params = 1;
    refuse_optimizer(&t, AG_E_SHAPE, "it has 2 parameters, this adapter has 1");
    t.state.params = (ag_optimizer_param[]){t.params[0], t.params[1], t.params[1]};
    t.state.n_params = 3;
    refuse_optimizer(&t, AG_E_SHAPE, "it has 2 parameters, this adapter has 3");
}

/* A file like ours with one thing changed, and what is said to it. */
typedef struct {
    ag_torch_value *root, *group, *state, *entry; /* entry: of parameter 1 */
    ag_arena *a;
} draft;
typedef void change(draft *d);

static void replace(ag_torch_value *dict, const char *key, ag_torch_value *value)
{
    for (uint32_t i = 0; i < dict->n; i++)
        if (dict->items[2 * i]->kind == AG_TORCH_STRING && strcmp(dict->items[2 * i]->text, key) == 0) {
            dict->items[2 * i + 1] = value;
            return;
        }
    fail_msg("no key %s", key);
}

static const float nan_value[] = {1, 2, 3, (float)NAN}, negative_value[] = {1, 2, -3, 4}, half_step = 1.5f, other_step = 2;
static const double wide[] = {1, 2, 3, 4};
static const uint16_t halves[4];
static ag_torch_value *four(draft *d, const void *data, ag_torch_dtype dtype) { return ag_torch_tensor(d->a, data, dtype, 1, (int64_t[]){4}); }

static void with_nan(draft *d) { replace(d->entry, "exp_avg", four(d, nan_value, AG_TORCH_F32)); }
static void with_negative(draft *d) { replace(d->entry, "exp_avg_sq", four(d, negative_value, AG_TORCH_F32)); }
static void with_doubles(draft *d) { replace(d->entry, "exp_avg", four(d, wide, AG_TORCH_F64)); }
static void with_mixed(draft *d) { replace(d->entry, "exp_avg", four(d, halves, AG_TORCH_F16)); }
static void with_int_step(draft *d) { replace(d->entry, "step", ag_torch_int(d->a, 3)); }
static void with_half_step(draft *d) { replace(d->entry, "step", ag_torch_tensor(d->a, &half_step, AG_TORCH_F32, 0, NULL)); }
static void with_nan_step(draft *d) { replace(d->entry, "step", ag_torch_tensor(d->a, nan_value + 3, AG_TORCH_F32, 0, NULL)); }
static void with_other_step(draft *d) { replace(d->entry, "step", ag_torch_tensor(d->a, &other_step, AG_TORCH_F32, 0, NULL)); }
static void without_moment(draft *d) { d->entry->n = 2; }
static void without_entry(draft *d) { d->state->n = 1; }
static void with_other_id(draft *d) { d->state->items[2] = ag_torch_int(d->a, 5); }
static void with_one_id(draft *d)
{
    ag_torch_value *ids = ag_torch_list(d->a);
    ag_torch_push(d->a, ids, ag_torch_int(d->a, 0));
    ag_torch_push(d->a, ids, ag_torch_int(d->a, 0));
    replace(d->group, "params", ids);
}
static void with_text_ids(draft *d) { replace(d->group, "params", ag_torch_string(d->a, "0 1")); }
static void without_groups(draft *d) { replace(d->root, "param_groups", ag_torch_list(d->a)); }
static void without_state(draft *d) { replace(d->root, "state", ag_torch_none(d->a)); }
static void with_amsgrad(draft *d) { replace(d->group, "amsgrad", ag_torch_bool(d->a, true)); }
static void with_nan_rate(draft *d) { replace(d->group, "lr", ag_torch_float(d->a, (double)NAN)); }
static void with_text_rate(draft *d) { replace(d->group, "lr", ag_torch_string(d->a, "fast")); }
static void without_betas(draft *d) { replace(d->group, "betas", ag_torch_list(d->a)); }

static void write_draft(change *fn)
{
    ag_err err;
    ag_arena a = {0};
    two_params t;
    two_params_init(&t);
    must(ag_optimizer_load(&t.state, ARCHIVES, 3, &err));
    must(ag_optimizer_save(&t.state, scratch_path("."), &err));
    ag_torch_archive archive;
    must(ag_torch_open(&archive, scratch_path("optimizer.pt"), 0, &err));
    ag_torch_value *root = (ag_torch_value *)(uintptr_t)archive.root; /* ours to change: it is saved again at once */
    draft d = {.root = root, .a = &a};
    d.state = root->items[1];
    d.group = root->items[3]->items[0];
    d.entry = d.state->items[3];
    fn(&d);
    must(ag_torch_save(scratch_path("optimizer.pt"), root, &err));
    ag_torch_close(&archive);
    ag_arena_free(&a);
}

static void damaged_optimizers_are_refused(void **state)
{
    (void)state;
    static const struct {
        change *fn;
        ag_status code;
        const char *says;
    } cases[] = {
        {with_nan, AG_E_NUMERIC, "b: 'exp_avg' has the value nan at element 3"},
        {with_negative, AG_E_NUMERIC, "b: 'exp_avg_sq' has the value -3 at element 2"},
        {with_doubles, AG_E_UNSUPPORTED, "a tensor DoubleStorage [4]"},
        {with_mixed, AG_E_FORMAT, "different types"},
        {with_int_step, AG_E_FORMAT, "found the integer 3"},
        {with_half_step, AG_E_FORMAT, "'step' is 1.5"},
        {with_nan_step, AG_E_FORMAT, "'step' is nan"},
        {with_other_step, AG_E_FORMAT, "b: 'step' is 2, that of a is 3"},
        {without_moment, AG_E_FORMAT, "'exp_avg_sq' must be a tensor, found nothing"},
        {without_entry, AG_E_SHAPE, "moments of 1 parameters and lists 2"},
        {with_other_id, AG_E_FORMAT, "moments of parameter 1 are missing"},
        {with_one_id, AG_E_FORMAT, "list parameter 0 twice"},
        {with_text_ids, AG_E_FORMAT, "'params' of a parameter group must be a list"},
        {without_groups, AG_E_FORMAT, "found a list of 0"},
        {without_state, AG_E_FORMAT, "'state' must be a dict, found None"},
        {with_amsgrad, AG_E_UNSUPPORTED, "amsgrad"},
        {with_nan_rate, AG_E_FORMAT, "'lr' of a parameter group is nan"},
        {with_text_rate, AG_E_FORMAT, "found the text 'fast'"},
        {without_betas, AG_E_FORMAT, "'betas'"},
    };
    scratch_dir_create();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ag_err err;
        two_params t;
        two_params_init(&t);
        write_draft(cases[i].fn);
        must_fail(cases[i].code, cases[i].says, ag_optimizer_load(&t.state, scratch_path("."), 3, &err));
    }
    scratch_dir_remove();
}

/* ---- scheduler.pt, rng_state.pth --------------------------------------------------------------------------------------------------- */

static void schedules_are_read_and_written(void **state)
{
    (void)state;
    ag_err err;
    ag_scheduler_state s = {0};
    must(ag_scheduler_load(&s, ARCHIVES, 3, &err));
    assert_true(s.step == 3 && s.base_lr == 1e-3 && s.last_lr == 1e-3 * (1 - 3 / 10.0));
    must_fail(AG_E_FORMAT, "scheduler.pt: 'last_epoch' must be 4 at this checkpoint's step, found the integer 3",
              ag_scheduler_load(&s, ARCHIVES, 4, &err));
    scratch_dir_create();
    must(ag_scheduler_save(&(ag_scheduler_state){.step = 7, .base_lr = 2e-4, .last_lr = 1.0 / 7}, scratch_path("."), &err));
    must(ag_scheduler_load(&s, scratch_path("."), 7, &err));
    assert_true(s.step == 7 && s.base_lr == 2e-4 && s.last_lr == 1.0 / 7);
    scratch_dir_remove();
}

static void assert_same_generator(const ag_mt19937 *a, const ag_mt19937 *b)
{
    assert_memory_equal(a->state, b->state, sizeof a->state);
    ag_mt19937 x = *a, y = *b;
    for (int i = 0; i < 700; i++) assert_int_equal(ag_mt19937_u32(&x), ag_mt19937_u32(&y));
    assert_true(a->has_normal == b->has_normal && a->cached_normal == b->cached_normal);
}

static void generators_equal_those_of_a_trainer_process(void **state)
{
    (void)state;
    ag_err err;
    ag_trainer_rng theirs, ours;
    must(ag_trainer_rng_load(&theirs, ARCHIVES, &err)); /* random.seed(42), numpy.random.seed(42), torch.manual_seed(42) */
    ag_trainer_rng_seed(&ours, 42);
    assert_same_generator(&theirs.python, &ours.python);
    assert_same_generator(&theirs.numpy, &ours.numpy);
    assert_same_generator(&theirs.cpu, &ours.cpu);
}

static void generators_come_back_as_they_were_written(void **state)
{
    (void)state;
    ag_err err;
    ag_trainer_rng rng, back;
    ag_trainer_rng_seed(&rng, 7);
    scratch_dir_create();
    for (int n = 0; n < 3; n++) {
        for (int i = 0; i < n * 313; i++) { /* fresh, in the middle, at the very end of the words */
            (void)ag_mt19937_u32(&rng.python);
            (void)ag_mt19937_u32(&rng.numpy);
            (void)ag_mt19937_u32(&rng.cpu);
        }
        rng.numpy.has_normal = n, rng.numpy.cached_normal = n * 0.25;
        must(ag_trainer_rng_save(&rng, scratch_path("."), &err));
        must(ag_trainer_rng_load(&back, scratch_path("."), &err));
        rng.numpy.has_normal = back.numpy.has_normal = n > 0;
        assert_same_generator(&rng.python, &back.python);
        assert_same_generator(&rng.numpy, &back.numpy);
        assert_same_generator(&rng.cpu, &back.cpu);
    }
    scratch_dir_remove();
}

static ag_torch_value *words(ag_arena *a, bool tuple, int n)
{
    ag_torch_value *v = tuple ? ag_torch_tuple(a) : ag_torch_list(a);
    for (int i = 0; i < n; i++) ag_torch_push(a, v, ag_torch_int(a, 5));
    return v;
}

static ag_torch_value *python_state(ag_arena *a, int n_words)
{
    ag_torch_value *v = ag_torch_tuple(a);
    ag_torch_push(a, v, ag_torch_int(a, 3));
    ag_torch_push(a, v, words(a, true, n_words));
    ag_torch_push(a, v, ag_torch_none(a));
    return v;
}

static ag_torch_value *numpy_state(ag_arena *a, int n_words, int64_t position)
{
    ag_torch_value *v = ag_torch_tuple(a);
    ag_torch_push(a, v, ag_torch_string(a, "MT19937"));
    ag_torch_push(a, v, words(a, false, n_words));
    ag_torch_push(a, v, ag_torch_int(a, position));
    ag_torch_push(a, v, ag_torch_int(a, 0));
    ag_torch_push(a, v, ag_torch_float(a, 0));
    return v;
}

static unsigned char cpu_bytes[AG_MT19937_SAVED_BYTES], cuda_bytes[16];

static ag_status load_rng(ag_arena *a, ag_torch_value *python, ag_torch_value *numpy, int64_t n_cpu, ag_torch_value *cuda, ag_err *err)
{
    ag_trainer_rng rng;
    ag_torch_value *root = ag_torch_dict(a);
    if (python) ag_torch_put(a, root, "python", python);
    if (numpy) ag_torch_put(a, root, "numpy", numpy);
    ag_torch_put(a, root, "cpu", ag_torch_tensor(a, cpu_bytes, AG_TORCH_U8, 1, (int64_t[]){n_cpu}));
    if (cuda) ag_torch_put(a, root, "cuda", cuda);
    AG_TRY(ag_torch_save(scratch_path("rng_state.pth"), root, err));
    return ag_trainer_rng_load(&rng, scratch_path("."), err);
}

static ag_torch_value *cuda_state(ag_arena *a, int64_t n, int64_t offset)
{
    memcpy(cuda_bytes + 8, &offset, 8);
    return ag_torch_tensor(a, cuda_bytes, AG_TORCH_U8, 1, &n);
}

static void states_of_no_generator_are_refused(void **state)
{
    (void)state;
    ag_err err;
    ag_arena a = {0};
    ag_mt19937 mt;
    ag_mt19937_seed(&mt, 1);
    ag_mt19937_save(&mt, cpu_bytes);
    scratch_dir_create();
    ag_torch_value *python = python_state(&a, 625), *numpy = numpy_state(&a, 624, 624);
    const int64_t n = AG_MT19937_SAVED_BYTES;
    must(load_rng(&a, python, numpy, n, NULL, &err));
    must(load_rng(&a, python, numpy, n, cuda_state(&a, 8, 0), &err));
    must(load_rng(&a, python, numpy, n, cuda_state(&a, 16, 12), &err));
    must_fail(AG_E_FORMAT, "'python' is no state of its generator (found nothing)", load_rng(&a, NULL, numpy, n, NULL, &err));
    must_fail(AG_E_FORMAT, "'numpy' is no state", load_rng(&a, python, NULL, n, NULL, &err));
    must_fail(AG_E_FORMAT, "'python'", load_rng(&a, python_state(&a, 600), numpy, n, NULL, &err));
    must_fail(AG_E_FORMAT, "'python'", load_rng(&a, words(&a, false, 3), numpy, n, NULL, &err));
    must_fail(AG_E_FORMAT, "'numpy'", load_rng(&a, python, numpy_state(&a, 623, 0), n, NULL, &err));
    must_fail(AG_E_FORMAT, "'numpy'", load_rng(&a, python, numpy_state(&a, 624, 625), n, NULL, &err));
    must_fail(AG_E_FORMAT, "'numpy'", load_rng(&a, python, numpy_state(&a, 624, -1), n, NULL, &err));
    must_fail(AG_E_FORMAT, "'cpu': the saved random state has 5048 bytes", load_rng(&a, python, numpy, n - 8, NULL, &err));
    must_fail(AG_E_FORMAT, "'cuda'", load_rng(&a, python, numpy, n, cuda_state(&a, 12, 0), &err));
    must_fail(AG_E_FORMAT, "'cuda'", load_rng(&a, python, numpy, n, cuda_state(&a, 16, 6), &err));
    must_fail(AG_E_FORMAT, "'cuda'", load_rng(&a, python, numpy, n, cuda_state(&a, 16, -4), &err));
    scratch_dir_remove();
    ag_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_state_is_written_as_transformers_writes_it),
        cmocka_unit_test(the_state_of_transformers_is_read),
        cmocka_unit_test(states_that_the_trainer_would_refuse_are_refused),
        cmocka_unit_test(moments_of_torch_are_read),
        cmocka_unit_test(bf16_moments_are_widened),
        cmocka_unit_test(moments_come_back_as_they_were_written),
        cmocka_unit_test(moments_of_another_adapter_are_refused),
        cmocka_unit_test(damaged_optimizers_are_refused),
        cmocka_unit_test(schedules_are_read_and_written),
        cmocka_unit_test(generators_equal_those_of_a_trainer_process),
        cmocka_unit_test(generators_come_back_as_they_were_written),
        cmocka_unit_test(states_of_no_generator_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
