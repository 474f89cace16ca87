// Running tasks on several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace weft {

// Run task(0) to task(count - 1), each once, on up to `threads` threads, this one among them;
// returns when all are done. `worker` is the number of the thread that runs the task, from 0.
// Tasks are handed out in order; a task must not depend on which thread runs it.
void run_tasks(int threads, int64_t count,
               const std::function<void(int64_t task, int worker)>& task);

}  // namespace weft
