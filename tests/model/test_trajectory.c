/* Twelve optimizer steps against PyTorch's (tests/golden/train): loss, gradient norm and learning rate of every step, and the adapter they
 * end with; then what must be equal among ourselves.
 *
 *     test_trajectory [GOLDEN MODEL]      another golden of that form, and its model's folder */
#include "support/op_check.h"

#include "adapter/peft_io.h"
#include "base/json.h"
#include "train/schedule.h"
#include "train/step.h"

static const char *root = AGOGE_TESTS_DIR "/golden/train", *model = AGOGE_TESTS_DIR "/golden/train/llama";

enum { N_STEPS = 12, MAX_ROWS = 8, MAX_TOKENS = 64 };

typedef struct {
    int32_t ids[MAX_TOKENS], positions[MAX_TOKENS], targets[MAX_TOKENS];
    ag_attention_span spans[MAX_ROWS];
    ag_decoder_batch batch;
} micro_batch;

typedef struct {
    ag_model *model;
    ag_peft *peft;
    ag_adapter adapter;
    ag_decoder *decoder;
    ag_stepper stepper;
    ag_backend backend;
    float *params, *grads, *m, *v;
    ag_arena arena;
} trainer;

static json_t *load(const char *name)
{
    ag_err err;
    json_t *root_value;
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (ag_json_load(&root_value, path, 1 << 20, &err)) fail_msg("%s", err.text);
    return root_value;
}

static void add_row(micro_batch *b, const json_t *row)
{
    const json_t *ids = json_object_get(row, "ids"), *labels = json_object_get(row, "labels");
    const int64_t n = (int64_t)json_array_size(ids), at = b->batch.T;
    assert_true(n > 0 && at + n <= MAX_TOKENS && b->batch.n_spans < MAX_ROWS);
    for (int64_t t = 0; t < n; t++) {
        b->ids[at + t] = (int32_t)json_integer_value(json_array_get(ids, (size_t)t));
        b->positions[at + t] = (int32_t)t;
        const json_int_t next = t + 1 < n ? json_integer_value(json_array_get(labels, (size_t)t + 1)) : -100;
        b->targets[at + t] = next >= 0 ? (int32_t)next : -1;
    }
    b->spans[b->batch.n_spans++] = (ag_attention_span){at, n, at, n};
    b->batch.T += n;
}

/* One micro-batch per entry, or all of a step's rows in one, or each row by itself. */
typedef enum { AS_GIVEN, ALL_IN_ONE, ROW_BY_ROW } division;

static int64_t divide(micro_batch *out, const json_t *step, division how)
{
    int64_t n = 0;
    memset(out, 0, MAX_ROWS * sizeof *out);
    for (size_t i = 0; i < json_array_size(step); i++) {
        const json_t *rows = json_array_get(step, i);
        for (size_t r = 0; r < json_array_size(rows); r++) {
            const bool is_new = how == ROW_BY_ROW || n == 0 || (how == AS_GIVEN && r == 0);
            if (is_new) n++;
            add_row(&out[n - 1], json_array_get(rows, r));
        }
    }
    for (int64_t i = 0; i < n; i++) {
        out[i].batch.ids = out[i].ids;
        out[i].batch.positions = out[i].positions;
        out[i].batch.targets = out[i].targets;
        out[i].batch.spans = out[i].spans;
    }
    return n;
}

static trainer begin(ag_cpu_level level, int n_threads, bool recompute)
{
    ag_err err;
    trainer t = {.backend = check_backend(level, n_threads)};
    char path[512];
    if (ag_model_open(&t.model, model, NULL, &err)) fail_msg("%s", err.text);
    snprintf(path, sizeof path, "%s/init", root);
    if (ag_peft_open(&t.peft, path, &t.model->d, &err)) fail_msg("%s", err.text);
    if (ag_adapter_plan(&t.adapter, &t.model->d, &t.peft->config.lora, &t.arena, &err)) fail_msg("%s", err.text);
    const size_t n = t.adapter.n_params;
    t.params = ag_arena_array(&t.arena, n, sizeof(float));
    t.grads = ag_arena_array(&t.arena, n, sizeof(float));
    t.m = ag_arena_array(&t.arena, n, sizeof(float));
    t.v = ag_arena_array(&t.arena, n, sizeof(float));
    memcpy(t.params, t.peft->adapter.params, n * sizeof(float));
    ag_adapter_bind(&t.adapter, t.params, t.grads);
    if (ag_decoder_create(&t.decoder, &(ag_decoder_options){.model = t.model, .backend = &t.backend, .lora = t.adapter.layers,
                          .train = true, .recompute = recompute, .max_tokens = MAX_TOKENS, .max_positions = MAX_TOKENS}, &err))
        fail_msg("%s", err.text);
    t.stepper = (ag_stepper){.decoder = t.decoder, .params = t.params, .grads = t.grads, .exp_avg = t.m,
                             .exp_avg_sq = t.v, .n_params = (int64_t)n, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                             .weight_decay = 0.01, .max_grad_norm = 1};
    return t;
}

static void end(trainer *t)
{
    ag_decoder_free(&t->decoder);
    ag_peft_close(&t->peft);
    ag_model_close(&t->model);
    ag_arena_free(&t->arena);
}

static double number(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }

/* The steps; with `want` each is held against PyTorch's. */
static void run(trainer *t, const json_t *batches, const json_t *want, division how, double *losses)
{
    ag_err err;
    micro_batch *micro = calloc(MAX_ROWS, sizeof *micro);
    t->stepper.backend = &t->backend;
    const ag_schedule schedule = {.kind = AG_LR_SCHEDULE_LINEAR, .peak = 1e-3, .n_warmup = 3, .n_steps = N_STEPS};
    assert_int_equal(N_STEPS, json_array_size(batches));
    for (int64_t step = 0; step < N_STEPS; step++) {
        const int64_t n = divide(micro, json_array_get(batches, (size_t)step), how);
        ag_decoder_batch views[MAX_ROWS];
        for (int64_t i = 0; i < n; i++) views[i] = micro[i].batch;
        const double lr = ag_schedule_rate(&schedule, step);
        ag_step_result r;
        if (ag_train_step(&t->stepper, views, n, step + 1, lr, 0, &r, &err)) fail_msg("%s", err.text);
        losses[step] = r.loss;
        if (!want) continue;
        const json_t *w = json_array_get(want, (size_t)step);
        assert_int_equal(r.n_targets, (int64_t)number(w, "targets"));
        if (!(fabs(r.loss - number(w, "loss")) < 1e-4)) fail_msg("step %d: loss %.9g, PyTorch %.9g", (int)step + 1, r.loss, number(w, "loss"));
        if (!(fabs(r.grad_norm / number(w, "grad_norm") - 1) < 1e-3))
            fail_msg("step %d: gradient norm %.9g, PyTorch %.9g", (int)step + 1, r.grad_norm, number(w, "grad_norm"));
        assert_true(fabs(lr - number(w, "lr")) < 1e-9);
    }
    free(micro);
}

/* 99 % of the entries within 1e-6, the rest within 1e-4: Adam divides by sqrt(v), so an entry whose gradient is near 0 is the least
 * certain. */
static void compare_final(const trainer *t)
{
    ag_err err;
    ag_peft *final;
    char path[512];
    snprintf(path, sizeof path, "%s/final", root);
    if (ag_peft_open(&final, path, &t->model->d, &err)) fail_msg("%s", err.text);
    assert_int_equal(final->adapter.n_params, t->adapter.n_params);
    size_t n_off = 0;
    for (size_t i = 0; i < t->adapter.n_params; i++) {
        const double off = fabs((double)t->params[i] - (double)final->adapter.params[i]);
        if (!(off < 1e-4)) fail_msg("parameter %zu is %.9g, PyTorch's %.9g", i, (double)t->params[i], (double)final->adapter.params[i]);
        n_off += off > 1e-6;
    }
    assert_true(n_off * 100 < t->adapter.n_params);
    ag_peft_close(&final);
}

static void twelve_steps_equal_pytorchs(void **state)
{
    (void)state;
    json_t *batches = load("batches.json"), *steps = load("steps.json");
    ag_cpu_level levels[AG_N_CPU_LEVELS] = {AG_CPU_REF};
    int n_levels = 1;
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) levels[n_levels++] = *level;
    for (int i = 0; i < n_levels; i++) {
        double losses[N_STEPS];
        trainer t = begin(levels[i], 1, i % 2 == 0);
        run(&t, batches, json_object_get(steps, "f32"), AS_GIVEN, losses);
        compare_final(&t);
        end(&t);
    }
    ag_json_free(&batches);
    ag_json_free(&steps);
}

static void how_rows_are_divided_into_micro_batches_does_not_matter(void **state)
{
    (void)state;
    json_t *batches = load("batches.json");
    double given[N_STEPS], one[N_STEPS], each[N_STEPS];
    trainer a = begin(ag_cpu_best_level(), 1, false), b = begin(ag_cpu_best_level(), 1, false), c = begin(ag_cpu_best_level(), 1, false);
    run(&a, batches, NULL, AS_GIVEN, given);
    run(&b, batches, NULL, ALL_IN_ONE, one);
    run(&c, batches, NULL, ROW_BY_ROW, each);
    for (int i = 0; i < N_STEPS; i++) {
        assert_true(fabs(given[i] - one[i]) < 1e-5);
        assert_true(fabs(given[i] - each[i]) < 1e-5);
    }
    end(&a);
    end(&b);
    end(&c);
    ag_json_free(&batches);
}

static void threads_and_recomputation_change_no_bit_of_a_trajectory(void **state)
{
    (void)state;
    json_t *batches = load("batches.json");
    double losses[N_STEPS], again[N_STEPS];
    trainer a = begin(ag_cpu_best_level(), 1, false);
    run(&a, batches, NULL, AS_GIVEN, losses);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        trainer b = begin(ag_cpu_best_level(), n_threads, true);
        run(&b, batches, NULL, AS_GIVEN, again);
        assert_memory_equal(losses, again, sizeof losses);
        assert_memory_equal(a.params, b.params, a.adapter.n_params * sizeof(float));
        end(&b);
    }
    end(&a);
    ag_json_free(&batches);
}

int main(int argc, char **argv)
{
    if (argc == 3) root = argv[1], model = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twelve_steps_equal_pytorchs),
        cmocka_unit_test(how_rows_are_divided_into_micro_batches_does_not_matter),
        cmocka_unit_test(threads_and_recomputation_change_no_bit_of_a_trajectory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
