#include "memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace fastsal {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMaxStoredFloats = int64_t{4} << 20;  // 16 MB

struct Store {
  std::mutex mutex;
  std::vector<Buffer> buffers;
};

// Never destroyed, and made anew in a forked child, where another thread of the parent may have held the lock.
Store& store() {
  static Store* instance = [] {
    pthread_atfork(nullptr, nullptr, [] { new (&store()) Store; });
    return new Store;
  }();
  return *instance;
}

size_t max_stored_buffers() { return std::max(1u, std::thread::hardware_concurrency()); }

}  // namespace

void FreeDeleter::operator()(float* pointer) const { std::free(pointer); }

Buffer::Buffer(int64_t floats) : size_(floats) {
  int64_t bytes = std::max<int64_t>(floats * static_cast<int64_t>(sizeof(float)), 1);
  const int64_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* pointer = nullptr;
  if (posix_memalign(&pointer, static_cast<size_t>(alignment), static_cast<size_t>(bytes)) != 0) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  if (alignment == kHugePage) madvise(pointer, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
  data_.reset(static_cast<float*>(pointer));
}

Scratch::Scratch(int64_t floats) {
  {
    std::lock_guard lock(store().mutex);
    std::vector<Buffer>& buffers = store().buffers;
    const auto fits = std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.size() >= floats; });
    if (fits != buffers.end()) {
      buffer_ = std::move(*fits);
      buffers.erase(fits);
      return;
    }
  }
  buffer_ = Buffer(floats);
}

Scratch::~Scratch() {
  if (!buffer_.data() || buffer_.size() > kMaxStoredFloats) return;
  std::lock_guard lock(store().mutex);
  std::vector<Buffer>& buffers = store().buffers;
  buffers.push_back(std::move(buffer_));
  if (buffers.size() <= max_stored_buffers()) return;
  buffers.erase(std::min_element(buffers.begin(), buffers.end(),
                                 [](const Buffer& a, const Buffer& b) { return a.size() < b.size(); }));
}

}  // namespace fastsal
