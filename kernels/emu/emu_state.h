/* What the emulator's files share: the running block, its fibers, and the watch over memory. Not for kernels. */
#ifndef BKL_EMU_STATE_H
#define BKL_EMU_STATE_H

#include "device.h"

#include <vector>

enum {
    EMU_MAX_THREADS = 1024,
    EMU_STACK = 128 << 10,
    EMU_SHARED_LIMIT = 99 << 10,
    EMU_SHARED_ARENA = 160 << 10,
    EMU_GUARD = 64
};

enum emu_thread_state { EMU_READY, EMU_AT_WARP, EMU_AT_BLOCK, EMU_DONE };

struct emu_copy {
    void *to;
    const void *from;
    int n_valid;
    bool landed;
};

struct emu_fiber {
    void *stack_pointer;
    emu_thread_state state;
    emu_place place;                            /* where it waits */
    std::vector<std::vector<emu_copy>> groups;  /* cp.async: the last is not committed yet */
};

struct emu_warp {
    uint32_t ready;              /* lanes that can run */
    uint32_t arrived, left;      /* lanes at the pending operation; lanes that returned */
    const char *operation;       /* the pending one */
    emu_place place;
    void *arguments[WARP];
    uint32_t epoch;              /* barriers of the warp or the block that it passed */
};

struct emu_array {
    size_t *place;
    size_t at, bytes;
};

struct emu_machine {
    bool running, failed;
    char sentence[768];
    const char *kernel;
    const emu_closure *closure;
    unsigned n_threads, current;
    unsigned n_done, n_at_block;
    uint32_t turn_order, turn_ready;   /* the running warp's turn: in which order its lanes run, and which of them */
    unsigned turn_next;
    emu_place block_place;
    uint32_t launch_serial;      /* of the launch's first block */
    uint32_t serial, epoch;      /* of the block; barriers that it passed */
    emu_fiber fibers[EMU_MAX_THREADS];
    emu_warp warps[EMU_MAX_THREADS / WARP];
    void *scheduler;
    unsigned char *stacks;
    alignas(128) unsigned char shared[EMU_SHARED_ARENA];
    std::vector<emu_array> arrays;
    size_t static_end, shared_bytes; /* where the next array lies; what the launch uses of EMU_SHARED_LIMIT */
    size_t dynamic_at, dynamic_bytes;
    uint64_t random;
};
extern emu_machine emu;

static inline emu_warp &emu_own_warp() { return emu.warps[emu.current / WARP]; }
uint32_t emu_random();

/* Ends the launch with a sentence; of a running kernel only. */
[[noreturn]] void emu_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
void emu_wait(emu_thread_state state, emu_place place);
/* Waits until all lanes are here, then the last one to come calls `perform` with all their arguments. */
void emu_collective(const char *operation, void *arguments, void (*perform)(void *arguments[WARP]), emu_place place);

/* ---- device memory --------------------------------------------------------------------------------------------------------
 */
void *emu_device_alloc(size_t bytes);
/* false: guards around it were overwritten */
bool emu_device_free(void *p);
/* The whole range lies in one allocation. */
bool emu_device_holds(const void *p, size_t bytes);
void emu_device_written(void *p, size_t bytes); /* by a copy from the host, or a memset */

/* ---- the watch ------------------------------------------------------------------------------------------------------------
 */
enum emu_access { EMU_READS, EMU_WRITES, EMU_ADDS /* atomic */, EMU_SENDS /* cp.async begins */ };
#ifdef EMU_WATCH
void emu_watch(const void *p, size_t bytes, emu_access access);
#else
static inline void emu_watch(const void *, size_t, emu_access) {}
#endif

#endif
