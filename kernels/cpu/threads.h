// Threads for one call: the caller and the workers it can get.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace fastsal {

// Where all members of a team wait for each other. Spins, then yields: the waits are shorter than a wake-up.
class Barrier {
 public:
  explicit Barrier(int members) : members_(members) {}
  void wait();

 private:
  const int members_;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> round_{0};
};

// One thread's place in a team.
struct Team {
  int member = 0;
  int members = 1;
  Barrier* barrier = nullptr;  // null for a team of one

  void wait() const {
    if (barrier) barrier->wait();
  }
};

// A member's part of `count` items.
struct Range {
  int64_t begin, end;
};
inline Range share(int64_t count, const Team& team) {
  return {count * team.member / team.members, count * (team.member + 1) / team.members};
}

// Runs `body` on the calling thread and on up to max_members - 1 idle workers at once, and returns when all have
// finished. Fewer members join where other calls hold the workers. Workers sleep between calls; a forked child starts
// its own. `body` must not throw.
void run_team(int max_members, const std::function<void(const Team&)>& body);

}  // namespace fastsal
