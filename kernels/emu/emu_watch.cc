/* The watch over memory: a note for each byte of shared and device memory of who wrote and read it last, and the calls that
 * -fsanitize=thread puts before every access of the kernel files (its own runtime is not linked).
 *
 * Two accesses of a block are ordered when a barrier of the block lies between them (its epoch has changed) or, in one warp, a
 * barrier of the warp. Blocks of one launch are never ordered, but for atomics among themselves. */
#include "emu_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <map>

enum { LIVE = 1, WRITTEN = 2, ON_ITS_WAY = 4, ATOMIC = 8, READ_BY_BLOCKS = 16 };
enum { SEVERAL = 0xffff, SEVERAL_OF_WARP = 0x8000 /* with the warp's number */ };

struct note {
    uint32_t write_serial, read_serial; /* the block's */
    uint32_t write_epoch, read_epoch;
    uint16_t writer, reader;            /* threads; or several */
    uint16_t write_warp_epoch, read_warp_epoch;
    uint32_t flags;
};
static_assert(sizeof(note) == 28, "notes are compared as bytes");

static const size_t ARENA = (size_t)4 << 30;
static unsigned char *arena;
static note *arena_notes;
static note shared_notes[EMU_SHARED_ARENA];
static size_t arena_end;
static std::map<uintptr_t, size_t> allocations;

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));
extern "C" const char _end __attribute__((visibility("hidden")));

/* ---- device memory: never used twice, so that a stale pointer is seen -----------------------------------------------------
 */
void *emu_device_alloc(size_t bytes)
{
    if (!arena) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        arena = (unsigned char *)mmap(nullptr, ARENA, PROT_READ | PROT_WRITE, flags, -1, 0);
        arena_notes = (note *)mmap(nullptr, ARENA * sizeof(note), PROT_READ | PROT_WRITE, flags, -1, 0);
        if (arena == MAP_FAILED || arena_notes == MAP_FAILED) {
            fprintf(stderr, "the emulator cannot reserve addresses for its device memory\n");
            abort();
        }
    }
    const size_t at = arena_end + 256, end = (at + bytes + 255) / 256 * 256;
    if (end > ARENA || bytes > ARENA) return nullptr;
    arena_end = end;
    allocations[(uintptr_t)arena + at] = bytes;
    memset(arena + at, 0xff, bytes);
    for (size_t i = 0; i < bytes; i++) arena_notes[at + i].flags = LIVE;
    return arena + at;
}

bool emu_device_free(void *p)
{
    const auto it = allocations.find((uintptr_t)p);
    if (it == allocations.end()) return false;
    const size_t at = (size_t)((unsigned char *)p - arena);
    for (size_t i = 0; i < it->second; i++) arena_notes[at + i].flags = 0;
    allocations.erase(it);
    return true;
}

bool emu_device_holds(const void *p, size_t bytes)
{
    auto it = allocations.upper_bound((uintptr_t)p);
    if (it == allocations.begin()) return false;
    --it;
    return (uintptr_t)p - it->first <= it->second && bytes <= it->second - ((uintptr_t)p - it->first);
}

void emu_device_written(void *p, size_t bytes)
{
    const size_t at = (size_t)((unsigned char *)p - arena);
    for (size_t i = 0; i < bytes; i++) arena_notes[at + i] = note{0, 0, 0, 0, 0, 0, 0, 0, LIVE | WRITTEN};
}

/* ---- one byte -------------------------------------------------------------------------------------------------------------
 */
static bool ordered(bool same_block, uint16_t who, uint32_t epoch, uint16_t warp_epoch)
{
    if (!same_block) return false;
    if (who == emu.current || epoch != emu.epoch) return true;
    if (who == SEVERAL) return false;
    const unsigned warp = who & SEVERAL_OF_WARP ? who & ~SEVERAL_OF_WARP : who / WARP;
    return warp == emu.current / WARP && warp_epoch != (uint16_t)emu_own_warp().epoch;
}

[[noreturn]] static void race(const char *memory, const void *p, bool writes, const char *what, uint16_t who, bool same_block)
{
    char other[64];
    if (!same_block)
        snprintf(other, sizeof other, "a thread of another block");
    else if (who == SEVERAL || who & SEVERAL_OF_WARP)
        snprintf(other, sizeof other, "other threads");
    else
        snprintf(other, sizeof other, "thread %u", who);
    emu_fault("%s %s memory (%p) that %s %s, with no barrier between them: a race", writes ? "writes" : "reads", memory, p,
              other, what);
}

static void note_read(note &n, const void *p, bool is_shared)
{
    const char *memory = is_shared ? "shared" : "device";
    if (is_shared ? n.write_serial != emu.serial : !(n.flags & WRITTEN))
        emu_fault("reads %s memory (%p) that nobody wrote", memory, p);
    if (n.flags & ON_ITS_WAY) emu_fault("reads %s memory (%p) that a copy (cp.async) is still on its way to", memory, p);
    const bool same_block = n.write_serial == emu.serial;
    if (n.write_serial >= emu.launch_serial && !ordered(same_block, n.writer, n.write_epoch, n.write_warp_epoch))
        race(memory, p, false, n.flags & ATOMIC ? "adds to (atomic)" : "wrote", n.writer, same_block);
    const uint16_t warp_epoch = (uint16_t)emu_own_warp().epoch, self = (uint16_t)emu.current;
    if (!is_shared && n.read_serial >= emu.launch_serial && n.read_serial != emu.serial) n.flags |= READ_BY_BLOCKS;
    if (n.read_serial < emu.launch_serial || is_shared) n.flags &= ~(uint32_t)READ_BY_BLOCKS;
    if (n.read_serial == emu.serial && n.read_epoch == emu.epoch && n.reader != self) {
        const unsigned warp = n.reader & SEVERAL_OF_WARP ? n.reader & ~SEVERAL_OF_WARP : n.reader / WARP;
        if (n.reader == SEVERAL || warp != self / WARP)
            n.reader = SEVERAL;
        else
            n.reader = n.read_warp_epoch == warp_epoch ? (uint16_t)(SEVERAL_OF_WARP | self / WARP) : self;
    } else {
        n.reader = self;
    }
    n.read_serial = emu.serial, n.read_epoch = emu.epoch, n.read_warp_epoch = warp_epoch;
}

static void note_write(note &n, const void *p, bool is_shared, emu_access access)
{
    const char *memory = is_shared ? "shared" : "device";
    const bool both_atomic = access == EMU_ADDS && n.flags & ATOMIC;
    if (access == EMU_ADDS && (is_shared ? n.write_serial != emu.serial : !(n.flags & WRITTEN)))
        emu_fault("adds (atomic) to %s memory (%p) that nobody wrote", memory, p);
    bool same_block = n.write_serial == emu.serial;
    const bool is_old = is_shared ? n.write_serial != emu.serial : n.write_serial < emu.launch_serial;
    if (!is_old && !both_atomic && !ordered(same_block, n.writer, n.write_epoch, n.write_warp_epoch))
        race(memory, p, true,
             n.flags & ATOMIC       ? "adds to (atomic)"
             : n.flags & ON_ITS_WAY ? "copies to (cp.async)"
                                    : "wrote",
             n.writer, same_block);
    same_block = n.read_serial == emu.serial;
    const bool is_read = is_shared ? same_block : n.read_serial >= emu.launch_serial;
    if (is_read && (n.flags & READ_BY_BLOCKS || !ordered(same_block, n.reader, n.read_epoch, n.read_warp_epoch)))
        race(memory, p, true, "read", n.reader, same_block && !(n.flags & READ_BY_BLOCKS));
    n.write_serial = emu.serial, n.write_epoch = emu.epoch, n.writer = (uint16_t)emu.current;
    n.write_warp_epoch = (uint16_t)emu_own_warp().epoch;
    n.flags |= WRITTEN;
    n.flags &= ~(uint32_t)(ATOMIC | ON_ITS_WAY);
    if (access == EMU_ADDS) n.flags |= ATOMIC;
    if (access == EMU_SENDS) n.flags |= ON_ITS_WAY;
}

static bool in_shared_array(size_t at, size_t bytes)
{
    if (at >= emu.dynamic_at)
        return at - emu.dynamic_at <= emu.dynamic_bytes && bytes <= emu.dynamic_bytes - (at - emu.dynamic_at);
    for (const emu_array &a : emu.arrays)
        if (at >= a.at && at - a.at < a.bytes) return bytes <= a.bytes - (at - a.at);
    return false;
}

void emu_watch(const void *p, size_t bytes, emu_access access)
{
    if (!emu.running || (uintptr_t)p - (uintptr_t)emu.stacks < (size_t)EMU_MAX_THREADS * EMU_STACK) return;
    const bool writes = access != EMU_READS;
    note *notes;
    const size_t in_shared = (uintptr_t)p - (uintptr_t)emu.shared, in_arena = (uintptr_t)p - (uintptr_t)arena;
    const bool is_shared = in_shared < sizeof emu.shared;
    if (is_shared) {
        if (!in_shared_array(in_shared, bytes))
            emu_fault("%s %zu bytes of shared memory outside every array", writes ? "writes" : "reads", bytes);
        notes = shared_notes + in_shared;
    } else if (in_arena < ARENA) {
        notes = arena_notes + in_arena;
        for (size_t i = 0; i < bytes; i++)
            if (!(notes[i].flags & LIVE))
                emu_fault("%s %zu bytes of device memory (%p) outside every allocation", writes ? "writes" : "reads", bytes, p);
    } else {
        const uintptr_t at = (uintptr_t)p;
        const bool is_argument = at - (uintptr_t)emu.closure < sizeof *emu.closure;
        const bool is_constant = at >= (uintptr_t)&__ehdr_start && at < (uintptr_t)&_end;
        if (writes || !(is_argument || is_constant))
            emu_fault("%s %zu bytes at %p, which is no device memory", writes ? "writes" : "reads", bytes, p);
        return;
    }
    /* Bytes of one access mostly have the same history, so what the first one's note became, the others' become. */
    note before, after;
    for (size_t i = 0; i < bytes; i++) {
        if (i > 0 && memcmp(&before, &notes[i], sizeof before) == 0) {
            notes[i] = after;
            continue;
        }
        before = notes[i];
        if (writes)
            note_write(notes[i], (const unsigned char *)p + i, is_shared, access);
        else
            note_read(notes[i], (const unsigned char *)p + i, is_shared);
        after = notes[i];
    }
}

/* ---- what the compiler calls ----------------------------------------------------------------------------------------------
 */
#define EMU_HOOK extern "C" __attribute__((visibility("hidden")))
#define EMU_HOOKS(n)                                                                  \
    EMU_HOOK void __tsan_read##n(void *p) { emu_watch(p, n, EMU_READS); }             \
    EMU_HOOK void __tsan_write##n(void *p) { emu_watch(p, n, EMU_WRITES); }           \
    EMU_HOOK void __tsan_unaligned_read##n(void *p) { emu_watch(p, n, EMU_READS); }   \
    EMU_HOOK void __tsan_unaligned_write##n(void *p) { emu_watch(p, n, EMU_WRITES); }
EMU_HOOKS(1)
EMU_HOOKS(2)
EMU_HOOKS(4)
EMU_HOOKS(8)
EMU_HOOKS(16)
EMU_HOOK void __tsan_read_range(void *p, size_t bytes) { emu_watch(p, bytes, EMU_READS); }
EMU_HOOK void __tsan_write_range(void *p, size_t bytes) { emu_watch(p, bytes, EMU_WRITES); }
EMU_HOOK void __tsan_func_entry(void *) {}
EMU_HOOK void __tsan_func_exit() {}
EMU_HOOK void __tsan_init() {}
EMU_HOOK void *__tsan_memcpy(void *to, const void *from, size_t bytes)
{
    emu_watch(from, bytes, EMU_READS);
    emu_watch(to, bytes, EMU_WRITES);
    return memcpy(to, from, bytes);
}
EMU_HOOK void *__tsan_memset(void *to, int value, size_t bytes)
{
    emu_watch(to, bytes, EMU_WRITES);
    return memset(to, value, bytes);
}
