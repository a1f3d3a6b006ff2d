#include "processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#endif

namespace fastsal {
namespace {

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

}  // namespace

bool has_amx() {
  constexpr unsigned kBfloat16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBfloat16 | kTile | kInt8;
  return (cpuid(7, 0).edx & kAll) == kAll;
}

std::string request_amx() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return "";
  return std::string("the system does not give the tile registers (") + std::strerror(errno) + ")";
#else
  return "fastsal asks for the tile registers on Linux only";
#endif
}

bool has_avx_vnni() { return (cpuid(7, 1).eax & 1u << 4) != 0; }

}  // namespace fastsal
#endif
