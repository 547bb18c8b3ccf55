// A program that does a known number of known things, for the tests of what looks from outside.
//
// usage: known locks THREADS ROUNDS | known wakes THREADS ROUNDS | known work SLEEPS PAGES
// It says "ready", waits for a line, works, prints what it did, and waits for another line.
// The lock is one of our own on futex(2), so that its calls can be counted in here too; every
// function has a frame (-fno-omit-frame-pointer) and a name of its own.

#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NEVER_INLINE __attribute__((noinline, noclone))

static _Atomic unsigned contended_word;
static _Atomic unsigned long waits, wakes;
static unsigned long rounds;

// The system call in this very function: a library's would have no frame.
static NEVER_INLINE long futex_call(_Atomic unsigned *word, int operation, unsigned value)
{
#if defined(__x86_64__)
    long result;
    register long timeout __asm__("r10") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_futex), "D"(word), "S"(operation), "d"(value), "r"(timeout),
                       "r"(__builtin_frame_address(0)) // so that it has a frame
                     : "rcx", "r11", "memory");
    return result;
#else
    return syscall(SYS_futex, word, operation, value, NULL);
#endif
}

NEVER_INLINE void wait_for_the_lock(void)
{
    atomic_fetch_add(&waits, 1);
    futex_call(&contended_word, FUTEX_WAIT_PRIVATE, 2);
    __asm__ volatile("");
}

NEVER_INLINE void take_the_lock(void)
{
    unsigned expected = 0;
    if (atomic_compare_exchange_strong(&contended_word, &expected, 1))
        return;
    while (atomic_exchange(&contended_word, 2))
        wait_for_the_lock();
    __asm__ volatile("");
}

NEVER_INLINE void give_the_lock(void)
{
    if (atomic_exchange(&contended_word, 0) == 2) {
        atomic_fetch_add(&wakes, 1);
        futex_call(&contended_word, FUTEX_WAKE_PRIVATE, 1);
    }
    __asm__ volatile("");
}

NEVER_INLINE void fight_for_the_lock(void)
{
    for (unsigned long i = 0; i < rounds; i++) {
        take_the_lock();
        // Held across a sleep, so that the others must wait for it.
        struct timespec nap = {0, 200000};
        nanosleep(&nap, NULL);
        give_the_lock();
    }
    __asm__ volatile("");
}

static void *fighter(void *unused)
{
    (void)unused;
    fight_for_the_lock();
    return NULL;
}

// No thread waits on the word, so most CPU time is spent in the calls, regardless of scheduling.
static void *waker(void *unused)
{
    (void)unused;
    for (unsigned long i = 0; i < rounds; i++)
        futex_call(&contended_word, FUTEX_WAKE, 1);
    return NULL;
}

static void gate(const char *text)
{
    char line[16];
    printf("%s\n", text);
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        exit(0);
}

static int locks(int threads, void *(*run)(void *))
{
    pthread_t all[64];
    char text[128];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&all[i], NULL, run, NULL))
            return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    snprintf(text, sizeof(text), "%lu %lu %lx", waits, wakes, (unsigned long)&contended_word);
    gate(text);
    return 0;
}

static int work(long sleeps, long pages)
{
    char text[128];
    struct rusage before, after;
    long size = sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, (size_t)(pages * size), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, (size_t)(pages * size), MADV_NOHUGEPAGE))
        return 1;
    getrusage(RUSAGE_SELF, &before);
    for (long i = 0; i < pages; i++)
        memory[i * size] = 1;
    for (long i = 0; i < sleeps; i++) {
        struct timespec nap = {0, 100000};
        nanosleep(&nap, NULL);
    }
    getrusage(RUSAGE_SELF, &after);
    snprintf(text, sizeof(text), "%ld %ld",
             after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw,
             after.ru_minflt - before.ru_minflt + after.ru_majflt - before.ru_majflt);
    gate(text);
    return 0;
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    gate("ready");
    if (strcmp(words[1], "work")) {
        rounds = strtoul(words[3], NULL, 10);
        return locks(atoi(words[2]), strcmp(words[1], "wakes") ? fighter : waker);
    }
    return work(atol(words[2]), atol(words[3]));
}
