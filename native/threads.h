// Running tasks on several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace headloom {

// Run task(0) to task(count - 1), each once, on up to `threads` threads, this one among them;
// returns when all are done. `worker` is the number of the thread that runs the task, from 0.
// Tasks are handed out in order; a task must not depend on which thread runs it.
void run_tasks(int threads, int64_t count,
               const std::function<void(int64_t task, int worker)>& task);

// Let torch's operations that the calling thread asks for run on so many threads from now on; those
// that others ask for are left as they are, unlike by torch.set_num_threads. Returns how many it
// was before; 0: nothing was changed, since torch's threads are not those of a libgomp.
int set_own_threads(int count);

}  // namespace headloom
