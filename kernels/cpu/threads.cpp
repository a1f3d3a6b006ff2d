#include "threads.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace fastsal {
namespace {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int kSpins = 4000;

class Worker {
 public:
  Worker() : thread_([this] { loop(); }) { thread_.detach(); }

  void start(std::function<void()> job) {
    {
      std::lock_guard lock(mutex_);
      job_ = std::move(job);
    }
    wake_.notify_one();
  }

 private:
  void loop() {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return job_ != nullptr; });
      const std::function<void()> job = std::move(job_);
      job_ = nullptr;
      lock.unlock();
      job();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::function<void()> job_;
  std::thread thread_;
};

struct Pool {
  std::mutex mutex;
  std::vector<Worker*> idle;
  int workers = 0;
};

// Workers live as long as the process. A forked child has none of the parent's threads and maybe a locked mutex, so it
// starts with an empty pool.
Pool& pool() {
  static Pool* instance = [] {
    pthread_atfork(nullptr, nullptr, [] { new (&pool()) Pool; });
    return new Pool;
  }();
  return *instance;
}

// Takes up to `count` idle workers; starts new ones only up to the number that one call may ask for.
std::vector<Worker*> take_workers(int count) {
  std::vector<Worker*> taken;
  taken.reserve(static_cast<size_t>(count));
  std::lock_guard lock(pool().mutex);
  while (static_cast<int>(taken.size()) < count) {
    if (!pool().idle.empty()) {
      taken.push_back(pool().idle.back());
      pool().idle.pop_back();
    } else if (pool().workers < count) {
      try {
        taken.push_back(new Worker);
      } catch (const std::system_error&) {
        break;  // the system gives no more threads: the call runs on those it has
      }
      ++pool().workers;
    } else {
      break;
    }
  }
  return taken;
}

}  // namespace

void Barrier::wait() {
  const unsigned round = round_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == members_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
    if (spins < kSpins)
      pause();
    else
      std::this_thread::yield();
  }
}

void run_team(int max_members, const std::function<void(const Team&)>& body) {
  const std::vector<Worker*> workers = max_members > 1 ? take_workers(max_members - 1) : std::vector<Worker*>();
  const int members = static_cast<int>(workers.size()) + 1;
  Barrier barrier(members);
  std::atomic<int> running{members - 1};
  for (int i = 1; i < members; ++i) {
    Worker* worker = workers[static_cast<size_t>(i - 1)];
    worker->start([&body, &running, &barrier, worker, i, members] {
      body({i, members, &barrier});
      {
        std::lock_guard lock(pool().mutex);
        pool().idle.push_back(worker);
      }
      running.fetch_sub(1, std::memory_order_release);  // the last touch of the caller's memory
    });
  }
  body({0, members, members > 1 ? &barrier : nullptr});
  for (int spins = 0; running.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < kSpins)
      pause();
    else
      std::this_thread::yield();
  }
}

}  // namespace fastsal
