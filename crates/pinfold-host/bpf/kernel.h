// What the programs share: the parts of the kernel's interface that they use, and maps.
//
// Numbers and shapes: include/uapi/linux/bpf.h. No header of a kernel is used.

typedef unsigned char u8;
typedef unsigned short u16;
typedef int s32;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
// Its members are where the running kernel has them: the loader corrects their offsets.
#define KERNEL_TYPE __attribute__((preserve_access_index))
#define INLINE static inline __attribute__((always_inline))

// A map as the loader reads it from the types of the object.
#define MAP(name, kind, entries, key_type, value_type) \
    struct {                                           \
        int (*type)[kind];                             \
        int (*max_entries)[entries];                   \
        key_type *key;                                 \
        value_type *value;                             \
    } name SEC(".maps")

// An array of u64 that the supervisor writes through its own memory.
#define SHARED_WORDS(name, entries)           \
    struct {                                  \
        int (*type)[BPF_MAP_TYPE_ARRAY];      \
        int (*max_entries)[entries];          \
        int (*map_flags)[BPF_F_MMAPABLE];     \
        u32 *key;                             \
        u64 *value;                           \
    } name SEC(".maps")

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6, BPF_MAP_TYPE_STACK_TRACE = 7 };
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_F_USER_STACK = 256, BPF_F_MMAPABLE = 1024 };
struct bpf_perf_event_value {
    u64 counter;
    u64 enabled;
    u64 running;
};
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_get_current_comm)(void *buffer, u32 size) = (void *)16;
static long (*bpf_get_stackid)(void *context, void *map, u64 flags) = (void *)27;
static long (*bpf_perf_prog_read_value)(void *context, struct bpf_perf_event_value *value, u32 size) = (void *)56;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*bpf_loop)(u32 count, void *callback, void *context, u64 flags) = (void *)181;
