/* Four optimizer steps of every kind of adapter and optimizer against PEFT, transformers and bitsandbytes
 * (tools/golden/adapter_kinds.py): losses, gradient norms, and the adapter they end with. */
#include "support/golden.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "adapter/peft_io.h"
#include "base/fs.h"
#include "base/json.h"
#include "train/step.h"

#include <math.h>

#define ROOT AGOGE_TESTS_DIR "/golden/"
enum { MAX_TOKENS = 32 };
static ag_err err;

typedef struct {
    ag_model *base;
    ag_peft *init;
    ag_adapter adapter;
    ag_backend be;
    ag_decoder *decoder;
    ag_optimizer optimizer;
    ag_train_config *config;
    ag_stepper stepper;
    float *params, *grads;
    int32_t ids[MAX_TOKENS], positions[MAX_TOKENS], targets[MAX_TOKENS];
    ag_attention_span spans[2];
    ag_decoder_batch batch;
    void *block;
    size_t block_bytes;
    ag_arena arena;
} trainer;

static void read_rows(trainer *t)
{
    golden g = golden_open("adapter_kinds/dora/vectors.safetensors"); /* the rows are the same everywhere */
    for (int r = 0; r < 2; r++) {
        char name[16];
        snprintf(name, sizeof name, "ids_%d", r);
        const int64_t n = golden_n(&g, name), at = t->batch.T;
        const int64_t *ids = golden_get(&g, name, "I64", n);
        snprintf(name, sizeof name, "labels_%d", r);
        const int64_t *labels = golden_get(&g, name, "I64", n);
        for (int64_t k = 0; k < n; k++) {
            t->ids[at + k] = (int32_t)ids[k];
            t->positions[at + k] = (int32_t)k;
            t->targets[at + k] = k + 1 < n && labels[k + 1] >= 0 ? (int32_t)labels[k + 1] : -1;
        }
        t->spans[r] = (ag_attention_span){at, n, at, n};
        t->batch.T += n;
    }
    golden_close(&g);
    t->batch.ids = t->ids, t->batch.positions = t->positions, t->batch.targets = t->targets, t->batch.spans = t->spans, t->batch.n_spans = 2;
}

static void begin(trainer *t, const char *name, const json_t *steps, const char *more)
{
    char path[512], yaml[512];
    memset(t, 0, sizeof *t);
    snprintf(path, sizeof path, ROOT "adapter_kinds/%s", json_string_value(json_object_get(steps, "base")));
    must(ag_model_open(&t->base, path, NULL, &err));
    snprintf(path, sizeof path, ROOT "adapter_training/%s/init", name);
    must(ag_peft_open_on(&t->init, path, t->base, NULL, &err));
    snprintf(yaml, sizeof yaml, "model_id: m\ndataset_path: d\nlearning_rate: %.17g\nweight_decay: %.17g\n%s",
             json_number_value(json_object_get(steps, "lr")), json_number_value(json_object_get(steps, "weight_decay")), more);
    must(ag_train_config_parse(&t->config, yaml, strlen(yaml), "c", NULL, 0, &err));
    must(ag_adapter_plan(&t->adapter, &t->base->d, &t->init->config.lora, &t->arena, &err));
    ag_optimizer_plan(&t->optimizer, &t->adapter, t->config, &t->arena);
    ag_layout layout = {0};
    for (int pass = 0; pass < 2; pass++) {
        t->params = ag_layout_place(&layout, t->adapter.n_params * sizeof(float));
        t->grads = ag_layout_place(&layout, t->adapter.n_params * sizeof(float));
        ag_optimizer_place(&t->optimizer, &layout);
        if (pass == 1) break;
        t->block_bytes = layout.bytes;
        must(ag_pages_alloc(&t->block, layout.bytes, "a test", &err));
        layout = (ag_layout){.base = t->block};
    }
    memcpy(t->params, t->init->adapter.params, t->adapter.n_params * sizeof(float));
    ag_adapter_bind(&t->adapter, t->params, t->grads);
    ag_adapter_attach(&t->adapter, t->base);
    must(ag_backend_init_cpu(&t->be, ag_cpu_best_level(), 2, &err));
    ag_decoder_options o = {.model = t->base, .backend = &t->be, .train = true, .max_tokens = MAX_TOKENS, .max_positions = MAX_TOKENS};
    ag_adapter_use(&o, &t->adapter);
    must(ag_decoder_create(&t->decoder, &o, &err));
    t->stepper = (ag_stepper){.decoder = t->decoder, .backend = &t->be, .params = t->params, .grads = t->grads,
                              .n_params = (int64_t)t->adapter.n_params, .max_grad_norm = 1, .optimizer = &t->optimizer};
    read_rows(t);
}

static void end(trainer *t)
{
    ag_decoder_free(&t->decoder);
    ag_peft_close(&t->init);
    ag_model_close(&t->base);
    ag_train_config_free(&t->config);
    ag_pages_free(t->block, t->block_bytes);
    ag_arena_free(&t->arena);
}

static json_t *open_steps(const char *name)
{
    char path[512];
    json_t *root;
    snprintf(path, sizeof path, ROOT "adapter_training/%s/steps.json", name);
    must(ag_json_load(&root, path, 1 << 16, &err));
    return root;
}

static void take(trainer *t, int64_t step, const json_t *want)
{
    ag_step_result r;
    const json_t *lrs = json_object_get(want, "lr");
    const double lr = json_number_value(json_array_get(lrs, 0));
    for (size_t g = 0; g < json_array_size(lrs); g++)
        assert_true(fabs(json_number_value(json_array_get(lrs, g)) - lr * t->optimizer.lr_scale[g]) < 1e-15);
    assert_int_equal(t->optimizer.n_groups, json_array_size(lrs));
    must(ag_train_step(&t->stepper, &t->batch, 1, step + 1, lr, 0, &r, &err));
    const double loss = json_number_value(json_object_get(want, "loss")), norm = json_number_value(json_object_get(want, "grad_norm"));
    if (!(fabs(r.loss - loss) < 2e-5 * loss && fabs(r.grad_norm - norm) < 2e-4 * norm))
        fail_msg("step %d: loss %.9g, PyTorch %.9g; gradient norm %.9g, PyTorch %.9g", (int)step + 1, r.loss, loss, r.grad_norm, norm);
}

/* All but a few entries: where a gradient is next to nothing Adam divides two small numbers, and its sign may differ. */
static void compare_final(const trainer *t, const char *name)
{
    char path[512];
    ag_peft *final;
    snprintf(path, sizeof path, ROOT "adapter_training/%s/final", name);
    must(ag_peft_open_on(&final, path, t->base, NULL, &err));
    for (size_t i = 0; i < t->adapter.n_trained; i++) {
        const ag_trained *tensor = &t->adapter.trained[i];
        double most = 0, moved = 0;
        size_t n_far = 0;
        for (size_t k = tensor->at; k < tensor->at + tensor->n; k++) {
            const double d = fabs((double)t->params[k] - (double)final->adapter.params[k]);
            most = fmax(most, d);
            n_far += d > 2e-5;
            moved = fmax(moved, fabs((double)final->adapter.params[k] - (double)t->init->adapter.params[k]));
        }
        if (n_far > tensor->n / 100 || !(moved > 0))
            fail_msg("%s: %zu of %zu numbers of %s (kind %d) are off, %g at most; PyTorch moved them by %g", name, n_far, tensor->n,
                     tensor->module.path, (int)tensor->kind, most, moved);
    }
    ag_peft_close(&final);
}

static void train(const char *name, const char *more)
{
    trainer t;
    json_t *steps = open_steps(name);
    begin(&t, name, steps, more);
    const json_t *list = json_object_get(steps, "steps");
    for (size_t i = 0; i < json_array_size(list); i++) take(&t, (int64_t)i, json_array_get(list, i));
    compare_final(&t, name);
    end(&t);
    ag_json_free(&steps);
}

static void dora_and_biases_train_as_with_peft(void **state)
{
    (void)state;
    train("dora", "");
}

static void copies_of_modules_train_as_with_peft(void **state)
{
    (void)state;
    train("saved", "");
}

static void loraplus_has_pefts_groups_and_rates(void **state)
{
    (void)state;
    train("loraplus", "loraplus_lr_ratio: 8\n");
}

static void moments_in_8_bits_train_as_with_bitsandbytes(void **state)
{
    (void)state;
    train("adam8", "optim: adamw_8bit\n");
}

/* What is saved behind two steps and loaded by another trainer goes on along the same bits, for each optimizer's file. */
static void a_state_that_was_saved_goes_on_to_the_bit(void **state)
{
    (void)state;
    static const struct {
        const char *name, *more;
    } kinds[] = {{"dora", ""}, {"saved", ""}, {"loraplus", "loraplus_lr_ratio: 8\n"}, {"adam8", "optim: adamw_8bit\n"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        trainer whole, part;
        json_t *steps = open_steps(kinds[i].name);
        const json_t *list = json_object_get(steps, "steps");
        begin(&whole, kinds[i].name, steps, kinds[i].more);
        begin(&part, kinds[i].name, steps, kinds[i].more);
        const char *dir = scratch_dir_create();
        for (size_t k = 0; k < 4; k++) {
            take(&whole, (int64_t)k, json_array_get(list, k));
            if (k != 1) continue;
            ag_adapter saved = whole.adapter;
            must(ag_peft_save(&saved, dir, NULL, NULL, &err));
            ag_optimizer_state s = ag_optimizer_view(&whole.optimizer, 1e-3, 2, &whole.arena);
            must(ag_optimizer_save(&s, dir, &err));
        }
        must(ag_peft_read_weights(part.params, &part.adapter, part.base, dir, NULL, &err));
        ag_optimizer_state s = ag_optimizer_view(&part.optimizer, 0, 0, &part.arena);
        must(ag_optimizer_load(&s, dir, 2, &err));
        assert_int_equal(2, s.n_updates);
        for (size_t k = 2; k < 4; k++) take(&part, (int64_t)k, json_array_get(list, k));
        assert_memory_equal(whole.params, part.params, whole.adapter.n_params * sizeof(float));
        end(&whole);
        end(&part);
        ag_json_free(&steps);
        scratch_dir_remove();
    }
}

static void a_state_of_another_optimizer_is_refused(void **state)
{
    (void)state;
    trainer eight, torch;
    json_t *steps = open_steps("adam8");
    begin(&eight, "adam8", steps, "optim: adamw_8bit\n");
    begin(&torch, "adam8", steps, "");
    const char *dir = scratch_dir_create();
    ag_optimizer_state s = ag_optimizer_view(&eight.optimizer, 1e-3, 2, &eight.arena), other = ag_optimizer_view(&torch.optimizer, 0, 0, &torch.arena);
    must(ag_optimizer_save(&s, dir, &err));
    must_fail(AG_E_FORMAT, "'step' must be a tensor of one float", ag_optimizer_load(&other, dir, 2, &err));
    other.n_updates = 2;
    must(ag_optimizer_save(&other, dir, &err));
    must_fail(AG_E_FORMAT, "'step' must be a whole number", ag_optimizer_load(&s, dir, 2, &err));
    trainer plus;
    begin(&plus, "adam8", steps, "loraplus_lr_ratio: 4\n");
    ag_optimizer_state four = ag_optimizer_view(&plus.optimizer, 0, 0, &plus.arena);
    must_fail(AG_E_SHAPE, "it has 2 parameter groups, this run has 4", ag_optimizer_load(&four, dir, 2, &err));
    scratch_dir_remove();
    end(&eight);
    end(&torch);
    end(&plus);
    ag_json_free(&steps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dora_and_biases_train_as_with_peft),
        cmocka_unit_test(copies_of_modules_train_as_with_peft),
        cmocka_unit_test(loraplus_has_pefts_groups_and_rates),
        cmocka_unit_test(moments_in_8_bits_train_as_with_bitsandbytes),
        cmocka_unit_test(a_state_that_was_saved_goes_on_to_the_bit),
        cmocka_unit_test(a_state_of_another_optimizer_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
