// Loaded before everything else (LD_PRELOAD) by test_step_system.py: counts allocations, and runs steps in a process that
// is killed at the first system call but those that let a thread wait, wake others and end, and those that only are calls
// on machines where the kernel does not map them.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static int is_counting;
static long num_allocations;

static void count(void) {
  if (__atomic_load_n(&is_counting, __ATOMIC_RELAXED)) __atomic_add_fetch(&num_allocations, 1, __ATOMIC_RELAXED);
}

void* malloc(size_t bytes) { return count(), __libc_malloc(bytes); }
void* calloc(size_t number, size_t bytes) { return count(), __libc_calloc(number, bytes); }
void* realloc(void* old, size_t bytes) { return count(), __libc_realloc(old, bytes); }
void* memalign(size_t alignment, size_t bytes) { return count(), __libc_memalign(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return count(), __libc_memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  count();
  *memory = __libc_memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}

typedef int (*Run)(void* program, const void* step);

// How often `times` runs allocate, on all threads; -1 if one fails.
long count_allocations(Run run, void* program, const void* step, int times) {
  num_allocations = 0;
  __atomic_store_n(&is_counting, 1, __ATOMIC_SEQ_CST);
  int status = 0;
  for (int i = 0; i < times; ++i) status |= run(program, step);
  __atomic_store_n(&is_counting, 0, __ATOMIC_SEQ_CST);
  return status ? -1 : num_allocations;
}

#define ALLOW(number) \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

// Ends the process: with status 0 after `times` runs, by SIGSYS at a system call, with 2 where there is no seccomp.
void exit_after_runs_without_system_calls(Run run, void* program, const void* step, int times) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      ALLOW(SYS_futex),
      ALLOW(SYS_exit_group),
      ALLOW(SYS_clock_gettime),
      ALLOW(SYS_getcpu),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program_of_filter = {sizeof filter / sizeof *filter, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) _exit(2);
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program_of_filter)) _exit(2);
  int status = 0;
  for (int i = 0; i < times; ++i) status |= run(program, step);
  _exit(status ? 3 : 0);
}
