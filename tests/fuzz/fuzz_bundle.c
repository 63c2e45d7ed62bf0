/* A whole bundle with one of its documents replaced: the first byte says which, the rest is its text. The inventory is made to fit, so
 * that every check behind it is reached. Whatever the text, sealing ends with a verdict, and what it sealed verifies. */
#define _GNU_SOURCE
#include "support/file_tools.h"

#include "base/fs.h"
#include "seal/bundle.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const documents[] = {"run/manifest.json", "config/locked.json", "split_manifest.json", "adapter/artifact_index.json",
                                        "adapter/adapter_config.json", "contract.json", "merged/artifact_index.json", "merged/config.json",
                                        "merged/model.safetensors.index.json", "splits/train.jsonl"};
enum { N_DOCUMENTS = sizeof documents / sizeof *documents };
static char dir[64], *original[N_DOCUMENTS];

static void path_of(char out[256], const char *name) { snprintf(out, 256, "%s/%s", dir, name); }

static void set_up(void)
{
    char path[256];
    strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/agoge-fuzz-XXXXXX" : "/tmp/agoge-fuzz-XXXXXX");
    if (!mkdtemp(dir)) abort();
    file_tree_copy(AGOGE_TESTS_DIR "/golden/seal/merged", dir);
    for (int i = 0; i < N_DOCUMENTS; i++) {
        path_of(path, documents[i]);
        original[i] = file_text(path);
    }
}

static void clean_up(void)
{
    ag_err err;
    if (*dir) (void)!ag_remove_tree(dir, &err);
}

static void put(int document, const void *bytes, size_t n)
{
    char path[256];
    path_of(path, documents[document]);
    const int fd = open(path, O_WRONLY | O_TRUNC);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n || close(fd)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if (!*dir) {
        set_up();
        atexit(clean_up);
    }
    const int document = data[0] % N_DOCUMENTS;
    ag_bundle_report report, again;
    ag_err err;
    ag_bundle_seal_options options = {.parts = AG_BUNDLE_PARTS_DEFAULT, .n_threads = 1};
    options.parts.merged_index = "merged/artifact_index.json";
    put(document, data + 1, size - 1);
    const ag_status status = ag_bundle_seal(&report, dir, &options, &err);
    if ((status == AG_OK) != (report.n == 0)) abort();
    if (!status) {
        if (ag_bundle_verify(&again, dir, &(ag_bundle_verify_options){.n_threads = 1}, &err) || again.n) abort();
        ag_bundle_report_free(&again);
    }
    ag_bundle_report_free(&report);
    put(document, original[document], strlen(original[document]));
    return 0;
}
