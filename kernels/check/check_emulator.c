/* The emulator is no use unless it sees mistakes: every kernel of emu/broken.cu has one, and each must be reported by name with
 * a sentence that says what is wrong; the kernel without a mistake must pass, under many orders of its threads. */
#include "device_check.h"

#include "../emu/broken.h"

#include <dlfcn.h>

typedef bkl_status broken_run_fn(bkl_stream *stream, const char *name, int *out, const int *in);

static broken_run_fn *entry(void)
{
    static broken_run_fn *run;
    if (run) return run;
    void *library = dlopen(getenv("BKL_LIBRARY"), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD),
         *symbol = dlsym(library, "bkl_broken_run");
    assert_non_null(symbol);
    memcpy(&run, &symbol, sizeof run);
    dlclose(library);
    return run;
}

static bkl_status run(const char *name)
{
    int in[256];
    for (int i = 0; i < 256; i++) in[i] = i;
    int *d_in = device_bytes(in, sizeof in),
        *d_out = device_bytes(NULL, strcmp(name, "past_an_allocation") == 0 ? 256 : sizeof in);
    if (strcmp(name, "plain_beside_atomic") == 0) must_run(bkl->fill(device_stream, d_out, 0, sizeof in));
    const bkl_status status = entry()(device_stream, name, d_out, d_in);
    device_drop(d_in);
    device_drop(d_out);
    return status;
}

/* The kernel is reported, by name, and for the reason that is wrong with it. */
static void reported(const char *kernel, const char *reason)
{
    for (int i = 0; i < 20; i++) { /* whatever the order of threads */
        const bkl_status status = run(kernel);
        if (status != BKL_E_DEVICE) fail_msg("%s was not reported", kernel);
        if (!strstr(device_error(), kernel) || !strstr(device_error(), reason))
            fail_msg("%s: \"%s\" does not say \"%s\"", kernel, device_error(), reason);
    }
}

static void races_in_shared_memory_are_reported(void **state)
{
    (void)state;
    reported("missing_barrier", "");
    reported("missing_warp_barrier", "");
    reported("two_writers", "race");
    reported("overwritten_while_read", "race");
    reported("plain_beside_atomic", "race");
}

static void races_between_blocks_are_reported(void **state)
{
    (void)state;
    reported("blocks_write_one_place", "another block");
    reported("block_reads_another", "another block");
}

static void divergence_is_reported(void **state)
{
    (void)state;
    reported("divergent_barrier", "barrier");
    reported("barrier_in_a_branch", "barrier");
    reported("divergent_shuffle", "shuffle");
    reported("barrier_against_shuffle", "wait for each other");
}

static void accesses_outside_of_arrays_are_reported(void **state)
{
    (void)state;
    reported("past_an_array", "outside every array");
    reported("past_dynamic_memory", "outside every array");
    reported("past_an_allocation", "outside every allocation");
    reported("host_pointer", "no device memory");
    reported("too_much_shared", "at most");
}

static void memory_that_nobody_wrote_is_reported(void **state)
{
    (void)state;
    reported("nobody_wrote_it", "nobody wrote");
    reported("nobody_filled_it", "nobody wrote");
}

static void misused_copies_and_matrices_are_reported(void **state)
{
    (void)state;
    reported("missing_copy_wait", "cp.async");
    reported("copy_wait_without_barrier", "");
    reported("copy_over_what_is_read", "race");
    reported("never_waited", "never waited");
    reported("crooked_matrix", "16 bytes aligned");
}

static void a_right_kernel_passes_in_any_order_of_threads(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++)
        if (run("nothing_wrong")) fail_msg("%s", device_error());
}

static void a_graph_runs_what_was_captured_as_often_as_launched(void **state)
{
    (void)state;
    float one[8] = {1, 1, 1, 1, 1, 1, 1, 1}, zero[8] = {0}, got[8];
    bkl_bf16 *gate = device_bf16(one, 8), *up = device_bf16(zero, 8), *y = device_bf16(zero, 8), *more = device_bf16(one, 8);
    bkl_graph *graph;
    const bkl_swiglu_fwd_args args = {.y = y, .gate = gate, .up = up, .n = 8};
    must_run(bkl->capture_begin(device_stream));
    must_run(bkl->swiglu_fwd(device_stream, &args, NULL, 0));
    must_run(bkl->copy(device_stream, up, more, 16));
    must_run(bkl->capture_end(device_stream, &graph));
    fetch_bf16(got, up, 8);
    assert_true(got[0] == 0); /* captured, not run */
    must_run(bkl->graph_launch(device_stream, graph));
    fetch_bf16(got, y, 8);
    assert_true(got[0] == 0);
    must_run(bkl->graph_launch(device_stream, graph));
    fetch_bf16(got, y, 8);
    assert_true(fabsf(got[0] - 0.731f) < 0.01f);
    bkl->graph_free(&graph);
    device_drop(gate), device_drop(up), device_drop(y), device_drop(more);
}

static void another_version_of_the_interface_is_refused_with_a_sentence(void **state)
{
    (void)state;
    char sentence[256] = "";
    void *library = dlopen(getenv("BKL_LIBRARY"), RTLD_NOW | RTLD_LOCAL), *symbol = dlsym(library, "bkl_api_get");
    bkl_api_get_fn *get;
    memcpy(&get, &symbol, sizeof get);
    assert_null(get(BKL_ABI_VERSION + 1, sentence, sizeof sentence));
    assert_non_null(strstr(sentence, "version 2"));
    dlclose(library);
}

static void copies_outside_of_allocations_are_refused(void **state)
{
    (void)state;
    int x[64] = {0}, *d_x = device_bytes(x, sizeof x);
    must_refuse(BKL_E_DEVICE, "not all of them lie", bkl->copy_out(device_stream, x, d_x + 1, sizeof x));
    must_refuse(BKL_E_DEVICE, "not all of them lie", bkl->copy_in(device_stream, x, d_x, sizeof x));
    device_drop(d_x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(races_in_shared_memory_are_reported),
        cmocka_unit_test(races_between_blocks_are_reported),
        cmocka_unit_test(divergence_is_reported),
        cmocka_unit_test(accesses_outside_of_arrays_are_reported),
        cmocka_unit_test(memory_that_nobody_wrote_is_reported),
        cmocka_unit_test(misused_copies_and_matrices_are_reported),
        cmocka_unit_test(a_right_kernel_passes_in_any_order_of_threads),
        cmocka_unit_test(a_graph_runs_what_was_captured_as_often_as_launched),
        cmocka_unit_test(another_version_of_the_interface_is_refused_with_a_sentence),
        cmocka_unit_test(copies_outside_of_allocations_are_refused),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
