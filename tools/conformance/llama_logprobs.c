/* llama.cpp's log-probability of every id after the first, in the form of `agoge score --ids-file`:
 *
 *     llama_logprobs MODEL.gguf IDS.jsonl [LORA.gguf]
 *
 * Build it against a llama.cpp tree that was built with static libraries:
 *     cc -O2 -I$L/include -I$L/ggml/include llama_logprobs.c -o llama_logprobs $B/src/libllama.a $B/ggml/src/libggml.a \
 *        $B/ggml/src/libggml-cpu.a $B/ggml/src/libggml-base.a -lstdc++ -fopenmp -lpthread -ldl -lm
 * One thread, no flash attention, an f32 cache: as exact as llama.cpp computes. */
#include "llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_IDS = 4096 };

static void die(const char *what)
{
    fprintf(stderr, "llama_logprobs: %s\n", what);
    exit(1);
}

static void quiet(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static double log_probability(const float *logits, int n, llama_token id)
{
    double largest = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) largest = fmax(largest, logits[i]);
    for (int i = 0; i < n; i++) sum += exp(logits[i] - largest);
    return logits[id] - largest - log(sum);
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) die("MODEL.gguf IDS.jsonl [LORA.gguf]");
    llama_log_set(quiet, NULL);
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[1], mp);
    if (!model) die("the model does not load");
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = cp.n_ubatch = MAX_IDS;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    struct llama_context *context = llama_init_from_model(model, cp);
    if (!context) die("no context");
    if (argc == 4) {
        struct llama_adapter_lora *lora = llama_adapter_lora_init(model, argv[3]);
        float scale = 1;
        if (!lora || llama_set_adapters_lora(context, &lora, 1, &scale)) die("the adapter does not load");
    }
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    FILE *f = fopen(argv[2], "r");
    if (!f) die("the ids cannot be read");
    struct llama_batch batch = llama_batch_init(MAX_IDS, 0, 1);
    for (int c; (c = fgetc(f)) != EOF;) {
        if (c != '[') continue;
        int n = 0;
        for (llama_token id; n < MAX_IDS && fscanf(f, " %d ,", &id) == 1; n++) {
            batch.token[n] = id;
            batch.pos[n] = n;
            batch.n_seq_id[n] = 1;
            batch.seq_id[n][0] = 0;
            batch.logits[n] = 1;
        }
        batch.n_tokens = n;
        llama_memory_clear(llama_get_memory(context), true);
        if (llama_decode(context, batch)) die("decoding failed");
        printf("{\"logprobs\": [");
        for (int i = 0; i + 1 < n; i++) printf("%s%.9g", i ? ", " : "", log_probability(llama_get_logits_ith(context, i), n_vocab, batch.token[i + 1]));
        printf("]}\n");
    }
    return 0;
}
