/* smoke-vllm and serve-vllm as programs: against a fake that answers as vLLM does, whole and streamed, and answers that are none. */
#define _GNU_SOURCE
#include "base/fs.h"
#include "base/json.h"
#include "support/http_peer.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a fake of vLLM ---------------------------------------------------------------------------------------------------------------- */
static const char whole[] =
    "HTTP/1.1 200 OK\r\ndate: Mon, 01 Dec 2025 10:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    "{\"id\":\"chatcmpl-2c7e\",\"object\":\"chat.completion\",\"created\":1764583200,\"model\":\"merged/demo\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
    "\"assistant\",\"content\":\"Paris | the city\\nof light\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],"
    "\"reasoning_content\":\"It is known.\"},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null}],\"service_tier\":null,"
    "\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":24,\"total_tokens\":31,\"completion_tokens\":7,\"prompt_tokens_details\":null},"
    "\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"kv_transfer_params\":null}";
static const char streamed[] =
    "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: close\r\n\r\n"
    "data: {\"id\":\"chatcmpl-9\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"merged/demo\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\","
    "\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
    "data: {\"id\":\"chatcmpl-9\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"merged/demo\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Pa\"},"
    "\"logprobs\":null,\"finish_reason\":null}]}\n\n"
    "data: {\"id\":\"chatcmpl-9\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"merged/demo\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ris\"},"
    "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}]}\n\n"
    "data: {\"id\":\"chatcmpl-9\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"merged/demo\",\"choices\":[],\"usage\":{\"prompt_tokens\":24,"
    "\"total_tokens\":26,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
static const char refused[] = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
                              "{\"error\":{\"message\":\"The model `x` does not exist.\",\"type\":\"NotFoundError\",\"param\":null,\"code\":404}}";
static const char nonsense[] = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<html>a proxy's page</html>";

typedef struct {
    int fd, n_answers;
    const char *const *answers;
    ag_str requests;
} fake;

static void *serve(void *user)
{
    fake *f = user;
    for (int i = 0; i < f->n_answers; i++) {
        const int fd = accept(f->fd, NULL, NULL);
        if (fd < 0) return NULL;
        char buffer[8192];
        size_t need = SIZE_MAX;
        for (size_t from = f->requests.n, n; f->requests.n - from < need;) {
            const ssize_t got = recv(fd, buffer, sizeof buffer, 0);
            if (got <= 0) break;
            ag_str_add_n(&f->requests, buffer, (size_t)got);
            const char *end = strstr(f->requests.text + from, "\r\n\r\n"), *length = strcasestr(f->requests.text + from, "content-length:");
            if (end && length && sscanf(length + 15, "%zu", &n) == 1) need = (size_t)(end + 4 - f->requests.text) - from + n;
        }
        http_peer_send(fd, f->answers[i], strlen(f->answers[i]));
        close(fd);
    }
    return NULL;
}

static int64_t begin_fake(fake *f, pthread_t *thread, const char *const *answers, int n)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    *f = (fake){.fd = socket(AF_INET, SOCK_STREAM, 0), .answers = answers, .n_answers = n};
    assert_int_equal(0, bind(f->fd, (struct sockaddr *)&at, sizeof at));
    assert_int_equal(0, listen(f->fd, 8));
    assert_int_equal(0, getsockname(f->fd, (struct sockaddr *)&at, &size));
    pthread_create(thread, NULL, serve, f);
    return ntohs(at.sin_port);
}

static void end_fake(fake *f, pthread_t thread)
{
    pthread_join(thread, NULL);
    close(f->fd);
    ag_str_free(&f->requests);
}

/* ---- the program -------------------------------------------------------------------------------------------------------------------- */
static int agoge(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int agoge(const char *format, ...)
{
    char words[1500], command[2500];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    const char *bin = getenv("AGOGE_BIN");
    assert_non_null(bin);
    snprintf(command, sizeof command, "cd %s && env -u OPENAI_API_KEY -u VLLM_API_KEY -u AGOGE_SMOKE_MODEL %s %s >out 2>err", scratch_path(""), bin, words);
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static char *text_of(const char *name)
{
    ag_err err;
    ag_arena arena = {0};
    char *text;
    size_t n;
    must(ag_file_read(&text, &n, scratch_path(name), 1 << 20, &arena, &err));
    text = strdup(text);
    ag_arena_free(&arena);
    return text;
}

static void assert_holds(const char *name, const char *part)
{
    char *text = text_of(name);
    if (!strstr(text, part)) fail_msg("%s does not hold \"%s\": %s", name, part, text);
    free(text);
}

static json_t *json_of(const char *name)
{
    ag_err err;
    json_t *root;
    must(ag_json_load(&root, scratch_path(name), 1 << 20, &err));
    return root;
}

static void whole_answers_are_recorded(void **state)
{
    (void)state;
    fake f;
    pthread_t thread;
    const int64_t port = begin_fake(&f, &thread, (const char *const[]){whole, whole}, 2);
    char set[] = "system: Be brief.\nprompts:\n  - 'Capital of France?'\n  - \"a | b\"\n";
    ag_err err;
    must(ag_file_publish(scratch_path("set.yaml"), set, strlen(set), &err));
    assert_int_equal(0, agoge("smoke-vllm --base-url http://127.0.0.1:%d/v1/ --model merged/demo --prompt-set set.yaml --run-name one --api-key sk-hidden", (int)port));
    assert_non_null(strstr(f.requests.text, "POST /v1/chat/completions"));
    assert_non_null(strstr(f.requests.text, "Bearer sk-hidden"));
    assert_non_null(strstr(f.requests.text, "{\"role\":\"system\",\"content\":\"Be brief.\"}"));
    assert_non_null(strstr(f.requests.text, "\"stream\":false"));
    assert_non_null(strstr(f.requests.text, "\"max_tokens\":512"));
    end_fake(&f, thread);
    json_t *r = json_of("runs/one/smoke_vllm_result.json");
    assert_int_equal(json_array_size(r), 2);
    assert_string_equal(json_text(r, "0.response_text"), "Paris | the city\nof light");
    assert_string_equal(json_text(r, "0.reasoning_text"), "It is known.");
    assert_string_equal(json_text(r, "0.finish_reason"), "stop");
    assert_string_equal(json_text(r, "1.status"), "ok");
    assert_string_equal(json_text(r, "1.raw_response_path"), "runs/one/raw/2.json");
    assert_int_equal(json_integer_value(json_at(r, "0.input_tokens")), 24);
    assert_int_equal(json_integer_value(json_at(r, "0.output_tokens")), 7);
    assert_int_equal(json_integer_value(json_at(r, "0.total_tokens")), 31);
    assert_int_equal(strlen(json_text(r, "0.prompt_hash")), 16);
    assert_true(json_number_value(json_at(r, "0.latency_ms")) > 0);
    assert_true(json_is_null(json_at(r, "0.time_to_first_token_ms")) && json_is_null(json_at(r, "0.error")));
    ag_json_free(&r);
    assert_holds("runs/one/results.jsonl", "{\"request_id\": 2, \"model_id\": \"merged/demo\", \"status\": \"ok\", \"stream\": false, \"prompt_tokens\": 24, ");
    assert_holds("runs/one/results.jsonl", "\"error\": null, \"workload\": \"smoke\"}");
    assert_holds("runs/one/summary.md", "a \\| b");
    assert_holds("runs/one/summary.md", "Paris \\| the city of light");
    assert_holds("runs/one/raw/1.json", "\"kv_transfer_params\":null");
    char *all[] = {text_of("out"), text_of("err"), text_of("runs/one/summary.md"), text_of("runs/one/smoke_vllm_result.json")};
    for (int i = 0; i < 4; i++) {
        assert_null(strstr(all[i], "sk-hidden"));
        free(all[i]);
    }
}

static void streamed_answers_are_put_together(void **state)
{
    (void)state;
    fake f;
    pthread_t thread;
    const int64_t port = begin_fake(&f, &thread, (const char *const[]){streamed}, 1);
    char config[200];
    snprintf(config, sizeof config, "model: merged/demo\nbase_url: http://127.0.0.1:%d/v1\nmax_tokens: 9\ntemperature: 0\n", (int)port);
    ag_err err;
    must(ag_file_publish(scratch_path("smoke.yaml"), config, strlen(config), &err));
    assert_int_equal(0, agoge("smoke-vllm --config smoke.yaml --run-name two --prompt 'Capital?'"));
    assert_non_null(strstr(f.requests.text, "\"stream\":true")); /* a file's default */
    assert_non_null(strstr(f.requests.text, "\"max_tokens\":9,\"temperature\":0.0"));
    end_fake(&f, thread);
    json_t *r = json_of("runs/two/smoke_vllm_result.json"), *raw = json_of("runs/two/raw/1.json");
    assert_string_equal(json_text(r, "0.response_text"), "Paris");
    assert_string_equal(json_text(r, "0.prompt"), "Capital?");
    assert_true(json_number_value(json_at(r, "0.time_to_first_token_ms")) >= 0);
    assert_int_equal(json_integer_value(json_at(r, "0.output_tokens")), 2);
    assert_int_equal(json_array_size(json_at(raw, "chunks")), 4);
    ag_json_free(&r);
    ag_json_free(&raw);
}

static void what_fails_is_an_error_of_its_row(void **state)
{
    (void)state;
    fake f;
    pthread_t thread;
    char set[] = "prompts: [one, two, three]\n";
    ag_err err;
    must(ag_file_publish(scratch_path("set.yaml"), set, strlen(set), &err));
    const int64_t port = begin_fake(&f, &thread, (const char *const[]){refused, nonsense, whole}, 3);
    assert_int_equal(1, agoge("smoke-vllm --base-url http://127.0.0.1:%d/v1 --model x --prompt-set set.yaml --run-name three", (int)port));
    end_fake(&f, thread);
    json_t *r = json_of("runs/three/smoke_vllm_result.json");
    assert_string_equal(json_text(r, "0.status"), "error");
    assert_non_null(strstr(json_text(r, "0.error"), "The model `x` does not exist."));
    assert_non_null(strstr(json_text(r, "1.error"), "no choices"));
    assert_string_equal(json_text(r, "2.status"), "ok");
    ag_json_free(&r);
    assert_int_equal(1, agoge("smoke-vllm --base-url http://127.0.0.1:%d/v1 --model x --run-name four --timeout-s 2", (int)port)); /* nobody is there any more */
    assert_int_equal(2, agoge("smoke-vllm --run-name five"));
    assert_holds("err", "needs a model");
    assert_int_equal(0, agoge("smoke-vllm --model x --run-name six --dry-run"));
    r = json_of("runs/six/smoke_vllm_result.json");
    assert_string_equal(json_text(r, "0.status"), "dry_run");
    assert_true(json_is_null(json_at(r, "0.latency_ms")));
    ag_json_free(&r);
    char wrong[] = "modle: x\n";
    must(ag_file_publish(scratch_path("wrong.yaml"), wrong, strlen(wrong), &err));
    assert_int_equal(1, agoge("smoke-vllm --config wrong.yaml"));
    assert_holds("err", "did you mean 'model'");
}

static void serve_vllm_prints_and_runs_a_command(void **state)
{
    (void)state;
    ag_err err;
    char config[] = "model: org/name\nport: 9000\nmax_model_len: 4096\ndtype: bfloat16\ngpu_memory_utilization: 0.9\nextra_args: ['--enable-lora', \"it's\"]\n";
    must(ag_file_publish(scratch_path("vllm.yaml"), config, strlen(config), &err));
    assert_int_equal(0, agoge("serve-vllm --config vllm.yaml --dry-run"));
    assert_holds("out", "vllm serve org/name --port 9000 --max-model-len 4096 --dtype bfloat16 --gpu-memory-utilization 0.9 --enable-lora 'it'\\''s'\n");
    assert_int_equal(0, agoge("serve-vllm --config vllm.yaml --dry-run --port 1234 --host 0.0.0.0 --extra-arg=--x"));
    assert_holds("out", "vllm serve org/name --host 0.0.0.0 --port 1234 --max-model-len 4096 --dtype bfloat16 --gpu-memory-utilization 0.9 --x\n");
    assert_int_equal(2, agoge("serve-vllm --dry-run"));
    assert_int_equal(2, agoge("serve-vllm --model x --gpu-memory-utilization 1.5 --dry-run"));
    must(ag_make_dirs(scratch_path("adapter"), &err));
    must(ag_file_publish(scratch_path("adapter/adapter_config.json"), "{}", 2, &err));
    assert_int_equal(1, agoge("serve-vllm --model adapter --dry-run"));
    assert_holds("err", "merge it first");
    char script[] = "#!/bin/sh\necho ran \"$@\"\nexit 7\n";
    must(ag_file_publish(scratch_path("vllm"), script, strlen(script), &err));
    char command[600];
    snprintf(command, sizeof command, "chmod +x %s && cd %s && PATH=%s:$PATH %s serve-vllm --model org/name >out 2>err", scratch_path("vllm"), scratch_path(""), scratch_path(""), getenv("AGOGE_BIN"));
    const int status = system(command);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_holds("out", "ran serve org/name --port 8000");
}

static int set_up(void **state)
{
    (void)state;
    scratch_dir_create();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_dir_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_answers_are_recorded),
        cmocka_unit_test(streamed_answers_are_put_together),
        cmocka_unit_test(what_fails_is_an_error_of_its_row),
        cmocka_unit_test(serve_vllm_prints_and_runs_a_command),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
