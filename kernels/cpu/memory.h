// Aligned float buffers, and a small store of scratch buffers that calls borrow and give back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace fastsal {

struct FreeDeleter {
  void operator()(float* pointer) const;
};

// Uninitialised floats, aligned for vectors; large ones on huge pages where the system has them.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t floats);
  float* data() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  std::unique_ptr<float, FreeDeleter> data_;
  int64_t size_ = 0;
};

// Scratch memory for one thread of one call. Buffers go back to a store of bounded number and size, since fresh pages
// cost a small call more than its arithmetic.
class Scratch {
 public:
  explicit Scratch(int64_t floats);
  ~Scratch();
  Scratch(Scratch&& other) noexcept = default;
  Scratch& operator=(Scratch&&) = delete;
  float* data() const { return buffer_.data(); }

 private:
  Buffer buffer_;
};

}  // namespace fastsal
