// CUDA C played on a CPU: blocks one after the other, the threads of a block side by side.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>
using std::min;
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
struct Place { int x = 0, y = 0; };
static thread_local Place blockIdx, blockDim, gridDim, threadIdx;
static std::barrier<>* together = nullptr;
static void __syncthreads() { together->arrive_and_wait(); }
static float __fmul_rn(float a, float b) { volatile float c = a * b; return c; }
static float __fadd_rn(float a, float b) { volatile float c = a + b; return c; }
static float __fsub_rn(float a, float b) { volatile float c = a - b; return c; }
static float __fdiv_rn(float a, float b) { volatile float c = a / b; return c; }
static float __fsqrt_rn(float a) { return std::sqrt(a); }
static void atomicAdd(unsigned* sum, unsigned value) { *sum += value; }
template <class Kernel> static void play(int across, int rows, bool waits, Kernel kernel) {
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < across; x++) {
            const auto one = [&](int thread) {
                blockIdx = {x, y}, blockDim = {256, 1}, gridDim = {across, rows}, threadIdx = {thread, 0};
                kernel();
            };
            if (!waits) {
                for (int thread = 0; thread < 256; thread++) one(thread);
                continue;
            }
            std::barrier<> all(256);
            together = &all;
            std::vector<std::thread> threads;
            for (int thread = 0; thread < 256; thread++)
                threads.emplace_back([&, thread] { one(thread); all.arrive_and_drop(); });
            for (auto& each : threads) each.join();
        }
}
