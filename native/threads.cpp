#include "threads.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weft {
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

// The pool of this process: a child made by fork has none of its parent's threads and needs a
// pool of its own. Never destroyed, since its threads sleep in it until the process ends.
Pool& pool() {
    static std::mutex mutex;
    static Pool* current = nullptr;
    static pid_t owner = 0;
    std::lock_guard<std::mutex> lock(mutex);
    if (!current || owner != getpid()) {
        current = new Pool;
        owner = getpid();
    }
    return *current;
}

}  // namespace

void run_tasks(int threads, int64_t count,
               const std::function<void(int64_t task, int worker)>& task) {
    if (threads > count) threads = static_cast<int>(count);
    if (threads <= 1) {
        for (int64_t next = 0; next < count; ++next) task(next, 0);
        return;
    }
    pool().run(threads, std::make_shared<Job>(count, task));
}

}  // namespace weft
