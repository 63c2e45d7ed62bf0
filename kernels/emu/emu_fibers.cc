/* Threads of a block as fibers, and who runs next. */
#include "emu_state.h"


#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

emu_machine emu;
emu_thread_index threadIdx;
dim3 blockIdx, blockDim, gridDim;

uint32_t emu_random()
{
    emu.random ^= emu.random << 13, emu.random ^= emu.random >> 7, emu.random ^= emu.random << 17;
    return (uint32_t)(emu.random >> 32);
}

/* ---- changing stacks ------------------------------------------------------------------------------------------------------
 */
extern "C" void emu_switch(void **from, void *to);
static void fiber_begin();

#if defined(__x86_64__)
__asm__(".text\n.type emu_switch, @function\n.hidden emu_switch\nemu_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
        ".size emu_switch, .-emu_switch\n");
static void *fiber_prepare(unsigned char *end)
{
    void **top = (void **)end;
    *--top = nullptr; /* so that the stack is aligned as after a call */
    *--top = (void *)fiber_begin;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    return top;
}
#elif defined(__aarch64__)
__asm__(".text\n.type emu_switch, %function\n.hidden emu_switch\nemu_switch:\n"
        "  sub sp, sp, #160\n  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n  ret\n.size emu_switch, .-emu_switch\n");
static void *fiber_prepare(unsigned char *end)
{
    void **frame = (void **)(end - 160);
    memset(frame, 0, 160);
    frame[11] = (void *)fiber_begin; /* x30 */
    return frame;
}
#else
#error "the emulator switches stacks on x86-64 and arm64"
#endif

static void to_fiber(unsigned t)
{
    emu.current = t, threadIdx.x = t;
#ifdef EMU_ASAN
    void *fake;
    __sanitizer_start_switch_fiber(&fake, emu.stacks + (size_t)t * EMU_STACK, EMU_STACK);
    emu_switch(&emu.scheduler, emu.fibers[t].stack_pointer);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    emu_switch(&emu.scheduler, emu.fibers[t].stack_pointer);
#endif
}

#ifdef EMU_ASAN
static const void *host_stack;
static size_t host_stack_bytes;
#endif

/* The next lane of the running warp's turn, EMU_MAX_THREADS when all had theirs. An odd step walks all lanes, in one of many
 * orders. */
static unsigned next_of_turn()
{
    while (emu.turn_next < WARP) {
        const unsigned lane = (emu.turn_next++ * (emu.turn_order | 1u) + (emu.turn_order >> 8)) % WARP;
        if (emu.turn_ready >> lane & 1u) return emu.current / WARP * WARP + lane;
    }
    return EMU_MAX_THREADS;
}

/* Lets others run: the next lane at once, the scheduler when the turn is over. */
static void leave(bool for_ever)
{
    emu_fiber &self = emu.fibers[emu.current];
#ifdef EMU_ASAN
    void *fake;
    __sanitizer_start_switch_fiber(for_ever ? nullptr : &fake, host_stack, host_stack_bytes);
    emu_switch(&self.stack_pointer, emu.scheduler);
    __sanitizer_finish_switch_fiber(fake, &host_stack, &host_stack_bytes);
#else
    (void)for_ever;
    const unsigned next = emu.failed ? (unsigned)EMU_MAX_THREADS : next_of_turn();
    void *to = emu.scheduler;
    if (next < EMU_MAX_THREADS) emu.current = next, threadIdx.x = next, to = emu.fibers[next].stack_pointer;
    emu_switch(&self.stack_pointer, to);
#endif
}

void emu_fault(const char *format, ...)
{
    if (!emu.running) {
        fprintf(stderr, "the emulator was called outside a kernel: %s\n", format);
        abort();
    }
    int n = snprintf(emu.sentence, sizeof emu.sentence, "kernel %s, block (%u,%u,%u), thread %u: ", emu.kernel, blockIdx.x,
                     blockIdx.y, blockIdx.z, emu.current);
    va_list args;
    va_start(args, format);
    vsnprintf(emu.sentence + n, sizeof emu.sentence - (size_t)n, format, args);
    va_end(args);
    emu.failed = true;
    leave(true);
    abort(); /* nobody comes back to a launch that failed */
}

void emu_wait(emu_thread_state state, emu_place place)
{
    emu_fiber &self = emu.fibers[emu.current];
    self.state = state, self.place = place;
    if (state != EMU_READY) emu_own_warp().ready &= ~(1u << emu.current % WARP);
    leave(false);
}

static void fiber_begin()
{
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &host_stack, &host_stack_bytes);
#endif
    emu.closure->call(emu.closure);
    emu_warp &warp = emu_own_warp();
    const uint32_t bit = 1u << emu.current % WARP;
    emu_fiber &self = emu.fibers[emu.current];
    for (const auto &group : self.groups)
        if (!group.empty()) emu_fault("leaves with copies (cp.async) that it never waited for");
    if (warp.arrived)
        emu_fault("leaves while lanes of its warp wait at %s (%s:%d)", warp.operation, warp.place.file, warp.place.line);
    if (emu.n_at_block)
        emu_fault("leaves while others wait at the barrier %s:%d", emu.block_place.file, emu.block_place.line);
    self.state = EMU_DONE, emu.n_done++, warp.left |= bit, warp.ready &= ~bit;
    leave(true);
    abort();
}

static bool same_place(emu_place a, emu_place b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

/* ---- barriers -------------------------------------------------------------------------------------------------------------
 */
void emu_block_barrier(emu_place place)
{
    if (emu.n_at_block && !same_place(emu.block_place, place))
        emu_fault("waits at the barrier %s:%d, others of its block at %s:%d", place.file, place.line, emu.block_place.file,
                  emu.block_place.line);
    if (emu.n_done) emu_fault("waits at the barrier %s:%d, but %u threads have left", place.file, place.line, emu.n_done);
    emu.block_place = place;
    if (++emu.n_at_block < emu.n_threads) {
        emu_wait(EMU_AT_BLOCK, place);
        return;
    }
    emu.n_at_block = 0, emu.epoch++;
    for (unsigned w = 0; w < emu.n_threads / WARP; w++) emu.warps[w].ready = ~0u, emu.warps[w].epoch++;
    emu_wait(EMU_READY, place);
}

void emu_collective(const char *operation, void *arguments, void (*perform)(void *arguments[WARP]), emu_place place)
{
    emu_warp &warp = emu_own_warp();
    const unsigned lane = emu.current % WARP;
    if (warp.left) emu_fault("is at %s (%s:%d), but lanes of its warp have left", operation, place.file, place.line);
    if (warp.arrived &&
        (!same_place(warp.place, place) || (warp.operation != operation && strcmp(warp.operation, operation) != 0)))
        emu_fault("is at %s (%s:%d), other lanes of its warp at %s (%s:%d)", operation, place.file, place.line, warp.operation,
                  warp.place.file, warp.place.line);
    warp.operation = operation, warp.place = place;
    warp.arguments[lane] = arguments, warp.arrived |= 1u << lane;
    if (warp.arrived != ~0u) {
        emu_wait(EMU_AT_WARP, place);
        return;
    }
    perform(warp.arguments);
    warp.arrived = 0, warp.ready = ~0u;
}

static void pass_warp_barrier(void **) { emu_own_warp().epoch++; }
void emu_warp_barrier(emu_place place) { emu_collective("__syncwarp", nullptr, pass_warp_barrier, place); }

/* ---- a block --------------------------------------------------------------------------------------------------------------
 */
static void explain_deadlock()
{
    unsigned t = 0;
    while (emu.fibers[t].state == EMU_DONE) t++;
    unsigned u = t;
    while (u + 1 < emu.n_threads && (emu.fibers[u].state == EMU_DONE || emu.fibers[u].state == emu.fibers[t].state)) u++;
    const emu_fiber &a = emu.fibers[t], &b = emu.fibers[u];
    snprintf(emu.sentence, sizeof emu.sentence,
             "kernel %s, block (%u,%u,%u): threads wait for each other: thread %u at %s:%d, thread %u %s %s:%d", emu.kernel,
             blockIdx.x, blockIdx.y, blockIdx.z, t, a.place.file, a.place.line, u,
             b.state == EMU_DONE ? "has left, last seen at" : "at", b.place.file, b.place.line);
    emu.failed = true;
}

static void run_block()
{
    const unsigned n_warps = emu.n_threads / WARP;
    emu.n_done = emu.n_at_block = 0, emu.epoch = 0, emu.serial++;
    for (unsigned w = 0; w < n_warps; w++)
        emu.warps[w].ready = ~0u, emu.warps[w].arrived = emu.warps[w].left = emu.warps[w].epoch = 0;
    for (unsigned t = 0; t < emu.n_threads; t++) {
        emu_fiber &f = emu.fibers[t];
        /* not all at one distance, or the lanes' frames would share a few sets of the cache */
        f.stack_pointer = fiber_prepare(emu.stacks + (size_t)(t + 1) * EMU_STACK - 64 - t % WARP * 576);
        f.state = EMU_READY, f.place = {"its beginning", 0}, f.groups.clear();
    }
    while (emu.n_done < emu.n_threads) {
        unsigned w = emu_random() % n_warps, tried = 0;
        while (tried < n_warps && emu.warps[w].ready == 0) tried++, w = w + 1 == n_warps ? 0 : w + 1;
        if (tried == n_warps) {
            explain_deadlock();
            return;
        }
        emu.turn_order = emu_random(), emu.turn_ready = emu.warps[w].ready, emu.turn_next = 0, emu.current = w * WARP;
        for (unsigned t = next_of_turn(); t < EMU_MAX_THREADS; t = next_of_turn()) {
            to_fiber(t);
            if (emu.failed) return;
        }
    }
}

static void run_grid(dim3 grid)
{
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = dim3(x, y, z);
                run_block();
                if (emu.failed) return;
            }
}

bkl_status emu_run(const char *name, dim3 grid, unsigned threads, size_t shared_bytes, const emu_closure &closure,
                   char *sentence, size_t sentence_bytes)
{
    if (threads == 0 || threads % WARP != 0 || threads > EMU_MAX_THREADS || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.y > 65535 || grid.z > 65535) {
        snprintf(sentence, sentence_bytes,
                 "kernel %s: a grid of (%u,%u,%u) blocks of %u threads; blocks have a multiple of 32 threads, 1024 "
                 "at most, and grids 65535 in y and z",
                 name, grid.x, grid.y, grid.z, threads);
        return BKL_E_DEVICE;
    }
    if (shared_bytes > EMU_SHARED_LIMIT) {
        snprintf(sentence, sentence_bytes, "kernel %s: %zu bytes of shared memory; a block has %d at most", name, shared_bytes,
                 EMU_SHARED_LIMIT);
        return BKL_E_DEVICE;
    }
    if (!emu.stacks) {
        emu.stacks = (unsigned char *)mmap(nullptr, (size_t)EMU_MAX_THREADS * EMU_STACK, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (emu.stacks == MAP_FAILED) {
            emu.stacks = nullptr;
            snprintf(sentence, sentence_bytes, "no memory for the stacks of the emulator's threads");
            return BKL_E_MEMORY;
        }
        const char *seed = getenv("BKL_EMU_SEED");
        emu.random = 0x9e3779b97f4a7c15u ^ (seed ? strtoull(seed, nullptr, 10) * 0xbf58476d1ce4e5b9u : 0);
    }
    emu.kernel = name, emu.closure = &closure, emu.n_threads = threads;
    emu.arrays.clear();
    emu.static_end = EMU_GUARD, emu.shared_bytes = shared_bytes;
    emu.dynamic_bytes = shared_bytes, emu.dynamic_at = EMU_SHARED_ARENA - (shared_bytes + 127) / 128 * 128 - 128;
    memset(emu.shared, 0xff, sizeof emu.shared); /* NaNs, where nobody watches */
    gridDim = grid, blockDim = dim3(threads);
    emu.launch_serial = emu.serial + 1;
    emu.failed = false, emu.running = true;
    run_grid(grid);
    emu.running = false;
    if (!emu.failed) return BKL_OK;
    snprintf(sentence, sentence_bytes, "%s", emu.sentence);
    return BKL_E_DEVICE;
}

/* ---- shared memory --------------------------------------------------------------------------------------------------------
 */
void *emu_static_shared(size_t *place, size_t bytes)
{
    for (const emu_array &a : emu.arrays)
        if (a.place == place) return emu.shared + a.at;
    const size_t at = (emu.static_end + 15) / 16 * 16;
    emu.static_end = at + bytes + EMU_GUARD, emu.shared_bytes += bytes;
    if (emu.shared_bytes > EMU_SHARED_LIMIT || emu.static_end > emu.dynamic_at)
        emu_fault("%zu bytes of shared memory; a block has %d at most", emu.shared_bytes, EMU_SHARED_LIMIT);
    emu.arrays.push_back({place, at, bytes});
    return emu.shared + at;
}

unsigned char *emu_dynamic_shared() { return emu.shared + emu.dynamic_at; }
