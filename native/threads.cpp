#include "threads.h"

#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>
#endif
#if !defined(_WIN32)
#include <unistd.h>
#endif

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

namespace headloom {
namespace {

// One call of run_tasks. Threads that come late find no task left and leave it alone.
struct Job {
    Job(int64_t count, const std::function<void(int64_t, int)>& task) : count(count), task(task) {}

    void work(int worker) {
        for (;;) {
            const int64_t next = taken.fetch_add(1, std::memory_order_relaxed);
            if (next >= count) return;
            task(next, worker);
            if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
                std::lock_guard<std::mutex> lock(mutex);
                finished.notify_one();
            }
        }
    }

    void wait() {
        for (int spin = 0; spin < 2000; ++spin) {
            if (done.load(std::memory_order_acquire) == count) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        std::unique_lock<std::mutex> lock(mutex);
        finished.wait(lock, [&] { return done.load(std::memory_order_acquire) == count; });
    }

    const int64_t count;
    const std::function<void(int64_t, int)>& task;  // lives until every task is done
    std::atomic<int64_t> taken{0}, done{0};
    std::mutex mutex;
    std::condition_variable finished;
};

// Threads that sleep between calls. Kept for the life of the process: waking one takes a tenth of
// the time of starting one, which is what short sequences would otherwise spend.
class Pool {
public:
    void run(int threads, const std::shared_ptr<Job>& job) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            while (static_cast<int>(started_) < threads - 1) {
                std::thread([this, worker = started_ + 1] { serve(worker); }).detach();
                ++started_;
            }
            job_ = job;
            wanted_ = threads - 1;
            ++generation_;
        }
        wake_.notify_all();
        job->work(0);
        job->wait();
    }

private:
    void serve(int worker) {
        uint64_t seen = 0;
        for (;;) {
            std::shared_ptr<Job> job;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return generation_ != seen; });
                seen = generation_;
                if (worker <= wanted_) job = job_;
            }
            if (job) job->work(worker);
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::shared_ptr<Job> job_;
    int started_ = 0, wanted_ = 0;
    uint64_t generation_ = 0;
};

// Which process this is. Windows makes none that goes on with the memory of another.
#if defined(_WIN32)
int this_process() { return 1; }
#else
int this_process() { return static_cast<int>(getpid()); }
#endif

// The pool of this process: a child made by fork has none of its parent's threads and needs a
// pool of its own. Never destroyed, since its threads sleep in it until the process ends.
Pool& pool() {
    static std::mutex mutex;
    static Pool* current = nullptr;
    static int owner = 0;
    std::lock_guard<std::mutex> lock(mutex);
    if (!current || owner != this_process()) {
        current = new Pool;
        owner = this_process();
    }
    return *current;
}

// torch runs its operations on the threads of a libgomp of its own, and for some milliseconds after
// each these wait for the next one, awake. Threads of ours would have to share the cores with them;
// so where that libgomp is loaded, tasks run on its threads. It is asked for at run time: nothing
// is linked.
using ParallelRegion = void (*)(void (*)(void*), void*, unsigned, unsigned);
using GetThreads = int (*)();
using SetThreads = void (*)(int);

#if defined(__linux__)
int look_for_libgomp(struct dl_phdr_info* library, size_t, void* found) {
    const char* path = library->dlpi_name;
    const char* slash = path ? std::strrchr(path, '/') : nullptr;
    if (!slash || std::strncmp(slash + 1, "libgomp", 7) != 0) return 0;
    const bool torchs = std::strstr(path, "torch") != nullptr;
    if (!torchs) return 0;
    *static_cast<const char**>(found) = path;
    return 1;
}

void* in_libgomp(const char* name) {
    const char* path = nullptr;
    dl_iterate_phdr(look_for_libgomp, &path);
    void* library = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    return library ? dlsym(library, name) : nullptr;
}
#else
void* in_libgomp(const char*) { return nullptr; }
#endif

// One call of run_tasks on torch's threads.
struct Region {
    const std::function<void(int64_t, int)>& task;
    const int64_t count;
    std::atomic<int64_t> taken{0};
    std::atomic<int> workers{0};

    static void run(void* self) {
        auto* region = static_cast<Region*>(self);
        const int worker = region->workers.fetch_add(1, std::memory_order_relaxed);
        for (;;) {
            const int64_t next = region->taken.fetch_add(1, std::memory_order_relaxed);
            if (next >= region->count) return;
            region->task(next, worker);
        }
    }
};

}  // namespace

void run_tasks(int threads, int64_t count,
               const std::function<void(int64_t task, int worker)>& task) {
    if (threads > count) threads = static_cast<int>(count);
    if (threads <= 1) {
        for (int64_t next = 0; next < count; ++next) task(next, 0);
        return;
    }
    // libgomp does not survive a fork: a child would wait for threads that it does not have.
    static const auto parallel_region =
        reinterpret_cast<ParallelRegion>(in_libgomp("GOMP_parallel"));
    static const int owner = this_process();
    if (parallel_region && owner == this_process()) {
        Region region{task, count};
        parallel_region(&Region::run, &region, static_cast<unsigned>(threads), 0);
        return;
    }
    pool().run(threads, std::make_shared<Job>(count, task));
}

int set_own_threads(int count) {
    static const auto get = reinterpret_cast<GetThreads>(in_libgomp("omp_get_max_threads"));
    static const auto set = reinterpret_cast<SetThreads>(in_libgomp("omp_set_num_threads"));
    if (!get || !set) return 0;
    const int before = get();
    set(count);
    return before;
}

}  // namespace headloom
