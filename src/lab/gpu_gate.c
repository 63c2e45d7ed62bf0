#include "lab/gpu_gate.h"

#include "base/str.h"

#include <string.h>

static bool is_one_of(const char *text, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(text, *list) == 0) return true;
    return false;
}

static bool ends_in_one_of(const char *text, const char *const *list)
{
    for (; *list; list++)
        if (ag_str_ends(text, *list)) return true;
    return false;
}

/* The gate's own rules and programs: who changes them changes what is proven. */
static const char *const policy[] = {"src/lab/gpu_gate.c", "src/lab/gpu_gate.h", "kernels/tools/bkl_gate.c", "tests/unit/test_gpu_gate.c",
                                     "tools/gpu_ci_gate.py", "tools/check_gpu_ci_gate.py", "tools/check_gpu_ci_policy.py", NULL};
static const char *const device_suffixes[] = {".cu", ".cuh", ".cpp", ".cc", ".cxx", ".h", ".hpp", ".cmake", NULL};
static const char *const host_only[] = {".gitignore",
                                        ".github/actionlint.yaml",
                                        ".github/workflows/ci-cpu.yml",
                                        ".github/workflows/ci-lint.yml",
                                        ".qlty/qlty.toml",
                                        ".qlty/.gitignore",
                                        "src/lab/f0_record.c",
                                        "src/lab/f0_clock.c",
                                        "src/lab/f0_join.c",
                                        "src/lab/f0_efficiency.c",
                                        "src/lab/f0_efficiency_report.c",
                                        "src/lab/gpu_capability.c",
                                        "src/lab/nvml.c",
                                        "kernels/tools/bkl_f0.c",
                                        "kernels/tools/bkl_efficiency.c",
                                        "kernels/tools/bkl_nvml.c",
                                        NULL};
static const char *const fixture_folders[] = {"fixtures/f0-correlation/", "fixtures/f0-efficiency/", "fixtures/f0-nvml-capability/", NULL};

bool ag_gpu_gate_path(const char *path)
{
    static const char *const fixture_suffixes[] = {".json", ".jsonl", NULL};
    if (ag_str_ends(path, ".md") || strcmp(path, "LICENSE") == 0) return false;
    if (is_one_of(path, policy) || ends_in_one_of(path, device_suffixes)) return true;
    const char *name = strrchr(path, '/');
    if (strcmp(name ? name + 1 : path, "CMakeLists.txt") == 0) return true;
    if (is_one_of(path, host_only)) return false;
    for (const char *const *f = fixture_folders; *f; f++)
        if (ag_str_starts(path, *f) && ends_in_one_of(path, fixture_suffixes)) return false;
    return true;
}

bool ag_gpu_gate_is_commit(const char *id)
{
    const size_t n = strlen(id);
    return (n == 40 || n == 64) && strspn(id, "0123456789abcdef") == n;
}

bool ag_gpu_gate_is_zero(const char *id) { return strspn(id, "0") == strlen(id); }

bool ag_gpu_gate_is_repository(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t owner = strspn(name, letters);
    if (owner == 0 || name[owner] != '/') return false;
    const size_t rest = strspn(name + owner + 1, letters);
    return rest > 0 && name[owner + 1 + rest] == 0;
}

static bool is(const char *text, const char *word) { return text && strcmp(text, word) == 0; }

ag_status ag_gpu_gate_verify(const ag_gpu_verdict_input *in, ag_err *err)
{
    if (!is(in->detection_result, "success"))
        return ag_fail(err, AG_E_VERIFY, "the detection ended as '%s', not 'success'", in->detection_result ? in->detection_result : "");
    if (!(is(in->required, "true") || is(in->required, "false")) || !(is(in->trusted, "true") || is(in->trusted, "false")))
        return ag_fail(err, AG_E_VERIFY, "required is '%s' and trusted is '%s'; both must be true or false", in->required ? in->required : "",
                       in->trusted ? in->trusted : "");
    const char *result = in->gpu_result ? in->gpu_result : "";
    if (is(in->required, "false"))
        return is(result, "skipped") ? AG_OK
                                     : ag_fail(err, AG_E_VERIFY, "no GPU run was needed, so its job must be 'skipped', not '%s'", result);
    if (!is(in->trusted, "true"))
        return ag_fail(err, AG_E_VERIFY, "the change needs a GPU run and comes from another repository; a maintainer must submit it again from a "
                                         "branch of this one");
    return is(result, "success") ? AG_OK : ag_fail(err, AG_E_VERIFY, "the change needs a GPU run, which ended as '%s'", result);
}
