/* agoge bench: what this machine does with a model, beside what it could do: every rate as a share of one measured in the same run. */
#include "cli/bench_model.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "cli/terminal.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "model/generate.h"
#include "ops/linear/linear_peak.h"
#include "train/step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    cli_compute_options compute;
    cli_format_options format;
    cli_model_options model;
    const char *shape;
    int64_t seq, batch, steps, prompt, generate;
    double dropout;
    bool recompute;
} options;

static const cli_option table[] = {
    CLI_STRING("model", options, model.model, "MODEL", "a model folder or .gguf file", 0),
    CLI_FLAG("load-in-4bit", options, model.load_in_4bit, "quantize a folder's projections to NF4 (default for folders)"),
    CLI_CHOICE("shape", options, shape, "SHAPE", "without --model: random weights of this shape in NF4", cli_shapes),
    CLI_INT("seq", options, seq, "T", "tokens of a training row (default 512)", 2, 1 << 20),
    CLI_INT("batch", options, batch, "B", "rows of a micro-batch (default 1)", 1, 4096),
    CLI_INT("steps", options, steps, "N", "training steps to measure (default 5)", 1, 1000),
    CLI_INT("prompt", options, prompt, "N", "tokens to prefill (default 512)", 1, 1 << 20),
    CLI_INT("generate", options, generate, "N", "tokens to decode (default 64)", 1, 1 << 20),
    CLI_DOUBLE("dropout", options, dropout, "P", "of the adapter's input (default 0)"),
    CLI_FLAG("recompute", options, recompute, "recompute activations in training (default on)"),
    CLI_CHOICE("compute", options, model.dtype, "TYPE", "operands of the matrix products", cli_compute_dtypes),
    CLI_COMPUTE(options, compute),
    CLI_FORMAT(options, format),
    CLI_END,
};

typedef struct {
    double gemm_gflops, read_gb_s, train_tok_s, train_share, first_step_s, prefill_tok_s, decode_tok_s, decode_share, tokenizer_mb_s;
    uint64_t planned_bytes, peak_bytes; /* of training */
} figures;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------- */
/* Best of several sums over 256 MiB, all threads. */
static ag_status measure_read(double *gb_s, int n_threads, ag_err *err)
{
    enum { PIECE = 1 << 16 };
    const size_t bytes = (size_t)256 << 20, n = bytes / sizeof(uint64_t);
    void *pages;
    AG_TRY(ag_pages_alloc(&pages, bytes, "measuring the memory", err));
    memset(pages, 1, bytes);
    const uint64_t *words = pages;
    uint64_t best = UINT64_MAX, sum = 0;
    for (int round = 0; round < 8; round++) {
        const uint64_t start = ag_clock_ns();
#pragma omp parallel for schedule(static) num_threads(n_threads) reduction(+ : sum)
        for (size_t i = 0; i < n; i += PIECE) {
            uint64_t part[8] = {0};
            for (size_t j = i; j < i + PIECE; j += 8)
                for (int k = 0; k < 8; k++) part[k] += words[j + (size_t)k];
            for (int k = 0; k < 8; k++) sum += part[k];
        }
        const uint64_t ns = ag_clock_ns() - start;
        if (ns < best) best = ns;
    }
    ag_pages_free(pages, bytes);
    *gb_s = sum ? (double)bytes / (double)best : 0; /* the sum is looked at, so that it is computed */
    return AG_OK;
}

/* ---- training ------------------------------------------------------------------------------------------------------------- */
typedef struct {
    ag_adapter adapter;
    ag_stepper stepper;
    ag_decoder_options sizes;
    ag_decoder *decoder;
    int32_t *ids, *positions, *targets;
    ag_attention_span *spans;
    ag_decoder_batch batch;
    ag_arena arena;
} trainer;

static ag_status prepare(trainer *t, const options *o, const cli_session *s, ag_err *err)
{
    AG_TRY(ag_adapter_plan(&t->adapter, &s->model->d, &(ag_lora_config){.r = 16, .alpha = 32, .pattern = "all-linear",
                           .dropout = o->dropout}, &t->arena, err));
    const size_t n = t->adapter.n_params;
    float *params = ag_arena_array(&t->arena, n, sizeof *params), *grads = ag_arena_array(&t->arena, n, sizeof *params),
          *m = ag_arena_array(&t->arena, n, sizeof *params), *v = ag_arena_array(&t->arena, n, sizeof *params);
    ag_adapter_bind(&t->adapter, params, grads);
    AG_TRY(ag_adapter_draw(&t->adapter, s->model, 1, s->backend.n_threads, err));

    const int64_t T = o->seq * o->batch;
    t->sizes = (ag_decoder_options){
        .model = s->model, .backend = &s->backend, .lora = t->adapter.layers, .compute = s->compute, .train = true,
        .recompute = o->recompute, .dropout = (float)o->dropout, .max_tokens = T, .max_positions = o->seq, .longest_span = o->seq};
    AG_TRY(ag_decoder_create(&t->decoder, &t->sizes, err));
    t->stepper = (ag_stepper){.decoder = t->decoder, .backend = &s->backend, .params = params, .grads = grads, .exp_avg = m,
                              .exp_avg_sq = v, .n_params = (int64_t)n, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .max_grad_norm = 1};
    t->ids = ag_arena_array(&t->arena, (size_t)T, sizeof *t->ids);
    t->positions = ag_arena_array(&t->arena, (size_t)T, sizeof *t->positions);
    t->targets = ag_arena_array(&t->arena, (size_t)T, sizeof *t->targets);
    t->spans = ag_arena_array(&t->arena, (size_t)o->batch, sizeof *t->spans);
    for (int64_t i = 0; i < T; i++) t->ids[i] = (int32_t)(ag_philox(7, (uint64_t)i, 0).word[0] % (uint32_t)s->model->d.V);
    for (int64_t i = 0; i < T; i++) {
        t->positions[i] = (int32_t)(i % o->seq);
        t->targets[i] = (i + 1) % o->seq ? t->ids[i + 1] : -1;
    }
    for (int64_t b = 0; b < o->batch; b++) t->spans[b] = (ag_attention_span){b * o->seq, o->seq, b * o->seq, o->seq};
    t->batch = (ag_decoder_batch){.T = T, .ids = t->ids, .positions = t->positions, .targets = t->targets, .spans = t->spans, .n_spans = o->batch};
    return AG_OK;
}

static uint64_t projection_bytes(const ag_model *m)
{
    uint64_t bytes = 0;
    for (int64_t l = 0; l < m->d.L; l++)
        for (int p = 0; p < AG_N_PROJ; p++) bytes += ag_weight_bytes(&m->layers[l].proj[p]);
    return bytes;
}

static uint64_t planned(const ag_model *m, const trainer *t)
{
    ag_decoder_bytes bytes;
    ag_decoder_plan(&bytes, &t->sizes);
    return ag_weight_bytes(&m->embed) + (m->d.tied ? 0 : ag_weight_bytes(&m->head)) + projection_bytes(m) +
           4 * t->adapter.n_params * sizeof(float) + bytes.activations + bytes.workspace;
}

static ag_status measure_training(figures *f, const options *o, const cli_session *s, uint64_t start_ns, ag_err *err)
{
    trainer t = {0};
    ag_status status = prepare(&t, o, s, err);
    double *seconds = ag_arena_array(&t.arena, (size_t)o->steps, sizeof *seconds);
    for (int64_t i = 0; !status && i <= o->steps; i++) {
        ag_step_result done;
        const uint64_t start = ag_clock_ns();
        status = ag_train_step(&t.stepper, &t.batch, 1, i + 1, 1e-4, (uint64_t)i, &done, err);
        if (i == 0) f->first_step_s = (double)(ag_clock_ns() - start_ns) * 1e-9; /* and not counted below: it warms up */
        if (i > 0) seconds[i - 1] = (double)(ag_clock_ns() - start) * 1e-9;
    }
    if (!status) {
        f->train_tok_s = (double)(o->seq * o->batch) / median(seconds, o->steps);
        f->planned_bytes = planned(s->model, &t);
    }
    ag_decoder_free(&t.decoder);
    ag_arena_free(&t.arena);
    return status;
}

/* ---- inference -------------------------------------------------------------------------------------------------------------- */
static ag_status measure_inference(figures *f, const options *o, const cli_session *s, ag_err *err)
{
    ag_decoder *dec = NULL;
    ag_kv_cache *cache = NULL;
    const int64_t capacity = o->prompt + o->generate, rows = o->prompt < 512 ? o->prompt : 512;
    int32_t *prompt = malloc((size_t)capacity * sizeof *prompt), *out = malloc((size_t)o->generate * sizeof *out);
    if (!prompt || !out) ag_out_of_memory((size_t)capacity * sizeof *prompt);
    for (int64_t i = 0; i < o->prompt; i++) prompt[i] = (int32_t)(ag_philox(8, (uint64_t)i, 0).word[0] % (uint32_t)s->model->d.V);
    ag_status status = cli_session_decoder(&dec, s, rows, 1, capacity, err);
    if (!status) status = ag_kv_cache_create(&cache, s->model, 1, capacity, err);
    for (int round = 0; !status && round < 3; round++) {
        ag_generate_result r;
        status = ag_generate(dec, cache, prompt, o->prompt, 0, &(ag_generate_options){.sampling = ag_sampling_greedy(),
                             .max_new_tokens = o->generate, .ignore_eos = true}, out, &r, err);
        const double prefill = (double)r.n_prefilled * 1e9 / (double)r.prefill_ns, decode = (double)(r.n_new - 1) * 1e9 / (double)r.decode_ns;
        f->prefill_tok_s = fmax(f->prefill_tok_s, prefill);
        f->decode_tok_s = fmax(f->decode_tok_s, decode);
    }
    const double bytes = (double)(ag_weight_bytes(&s->model->head) + projection_bytes(s->model));
    f->decode_share = f->decode_tok_s * bytes * 1e-9 / f->read_gb_s;
    ag_kv_cache_free(&cache);
    ag_decoder_free(&dec);
    free(prompt);
    free(out);
    return status;
}

/* Text that the tokenizer itself knows: its tokens' own texts in a random order, about 8 MB. */
static ag_status measure_tokenizer(figures *f, const cli_session *s, ag_err *err)
{
    ag_str text = {0};
    ag_encoding e = {0};
    const uint32_t n_vocab = (uint32_t)ag_tokenizer_vocab_size(s->text->tokenizer);
    for (uint64_t i = 0; text.n < 8 << 20 && i < 8 << 20; i++) {
        const int32_t id = (int32_t)(ag_philox(9, i, 0).word[0] % n_vocab);
        if (!ag_tokenizer_is_special(s->text->tokenizer, id)) ag_tokenizer_decode(s->text->tokenizer, &id, 1, true, &text);
    }
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    const uint64_t start = ag_clock_ns();
    ag_status status = ag_tokenizer_encode(s->text->tokenizer, scratch, text.text, text.n, &(ag_encode_options){.ids_only = true}, &e, err);
    f->tokenizer_mb_s = (double)text.n * 1e3 / (double)(ag_clock_ns() - start);
    ag_tokenizer_scratch_free(&scratch);
    ag_encoding_free(&e);
    ag_str_free(&text);
    return status;
}

/* ---- command ------------------------------------------------------------------------------------------------------------------- */
static void print(const options *o, const cli_session *s, const figures *f)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out, .indent = 2};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "model", s->model->path);
    ag_jw_string(&w, "cpu", ag_cpu_name());
    ag_jw_string(&w, "cpu_level", ag_cpu_level_name(s->backend.level));
    ag_jw_int(&w, "threads", s->backend.n_threads);
    ag_jw_string(&w, "compute", s->compute == AG_COMPUTE_BF16 ? "bf16" : "f32");
    ag_jw_int(&w, "seq", o->seq);
    ag_jw_int(&w, "batch", o->batch);
    ag_jw_bool(&w, "recompute", o->recompute);
    ag_jw_double(&w, "gemm_gflops", f->gemm_gflops);
    ag_jw_double(&w, "read_gb_s", f->read_gb_s);
    ag_jw_double(&w, "train_tok_s", f->train_tok_s);
    ag_jw_double(&w, "train_share", f->train_share);
    ag_jw_double(&w, "prefill_tok_s", f->prefill_tok_s);
    ag_jw_double(&w, "decode_tok_s", f->decode_tok_s);
    ag_jw_double(&w, "decode_share", f->decode_share);
    ag_jw_double(&w, "tokenizer_mb_s", s->text ? f->tokenizer_mb_s : NAN);
    ag_jw_double(&w, "first_step_s", f->first_step_s);
    ag_jw_uint(&w, "peak_rss_bytes", f->peak_bytes);
    ag_jw_uint(&w, "planned_bytes", f->planned_bytes);
    ag_jw_end(&w);
    if (cli_format_is_json(&o->format)) {
        printf("%s\n", out.text);
    } else {
        printf("machine    %s, level %s, %d threads: GEMM %s %.0f GFLOP/s, reads %.1f GB/s\n", ag_cpu_name(),
               ag_cpu_level_name(s->backend.level), s->backend.n_threads, s->compute == AG_COMPUTE_BF16 ? "bf16" : "f32", f->gemm_gflops,
               f->read_gb_s);
        printf("train      %.0f tok/s at %lld×%lld: %.0f %% of the GEMM rate; first step ended after %.2f s\n", f->train_tok_s,
               (long long)o->batch, (long long)o->seq, 100 * f->train_share, f->first_step_s);
        printf("prefill    %.0f tok/s\ndecode     %.1f tok/s: %.0f %% of the read rate\n", f->prefill_tok_s, f->decode_tok_s, 100 * f->decode_share);
        if (s->text) printf("tokenizer  %.1f MB/s\n", f->tokenizer_mb_s);
        printf("memory     %s at most in training, planned %s\n", cli_bytes(f->peak_bytes), cli_bytes(f->planned_bytes));
    }
    ag_str_free(&out);
}

/* Multiply-adds of a token that training cannot do without, twice: forward and dX of every weight. Recomputing is our own choice. */
static double flop_of_token(const ag_description *d)
{
    const double unused = d->tied ? 0 : (double)d->V * (double)d->C; /* an embedding that is only looked up */
    return 4 * ((double)ag_description_parameters(d) - unused);
}

static ag_status bench(const options *o, const cli_session *s, uint64_t start_ns, figures *f, ag_err *err)
{
    fprintf(stderr, "measuring: a minute or so; other programs' work shows in the figures\n");
    /* Training first: the time to its first step and the peak of memory are the program's own. */
    AG_TRY(measure_training(f, o, s, start_ns, err));
    f->peak_bytes = ag_process_peak_rss();
    AG_TRY(ag_linear_peak(&f->gemm_gflops, &s->backend, s->compute, err));
    AG_TRY(measure_read(&f->read_gb_s, s->backend.n_threads, err));
    AG_TRY(measure_inference(f, o, s, err));
    f->train_share = f->train_tok_s * flop_of_token(&s->model->d) * 1e-9 / f->gemm_gflops;
    return s->text ? measure_tokenizer(f, s, err) : AG_OK;
}

static ag_status open_session(cli_session *s, ag_model *made, const options *o, ag_arena *arena, ag_err *err)
{
    if (o->model.model) return cli_session_open(s, &o->model, &o->compute, CLI_TEXT | CLI_WEIGHTS, err);
    *s = (cli_session){.compute = strcmp(o->model.dtype, "bf16") == 0 ? AG_COMPUTE_BF16 : AG_COMPUTE_F32};
    AG_TRY(cli_backend(&s->backend, &o->compute, err));
    cli_bench_model(made, o->shape, arena);
    s->model = made;
    return AG_OK;
}

static int run(int argc, char **argv)
{
    options o = {.format = CLI_FORMAT_DEFAULT, .model = {.dtype = "f32", .load_in_4bit = true}, .shape = "smollm2-135m", .seq = 512,
                 .batch = 1, .steps = 5, .prompt = 512, .generate = 64, .recompute = true};
    ag_err err;
    cli_session s = {0};
    ag_model made;
    ag_arena arena = {0};
    figures f = {0};
    CLI_PARSE(&cli_bench, &o, argc, argv);
    const uint64_t start_ns = ag_clock_ns();
    ag_status status = open_session(&s, &made, &o, &arena, &err);
    if (!status) status = bench(&o, &s, start_ns, &f, &err);
    if (!status) print(&o, &s, &f);
    if (!o.model.model) s.model = NULL; /* the arena's */
    cli_session_close(&s);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_bench = {
    .name = "bench", .summary = "what this machine does with a model, beside what it could", .options = table, .run = run};
