// What the matrix unit (AMX) of one core does: products a second, what it costs to let it rest, and
// what vectors lose beside it.
// Run by bench_matrix_unit.py. Times are medians of many repeats.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr int amx_permission = 0x1023, tile_data = 18;  // arch_prctl, Linux
constexpr int tiles = 64;  // of 1 KiB: they fit into the nearest cache twice
alignas(64) uint16_t left[tiles / 2 * 512], right[tiles / 2 * 512];
alignas(64) float sums[256];

#define LOAD(tile, from) \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #tile::"r"(from), "r"(64L) : "memory")
#define MULTIPLY(sum, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum::)

double now() {
    return std::chrono::duration<double, std::nano>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

template <typename Work>
double median(int repeats, const Work& work) {
    std::vector<double> times(repeats);
    for (double& time : times) time = work();
    std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
    return times[repeats / 2];
}

// Nanoseconds of one product of 16 x 32 by 32 x 16, two tiles by two as in the kernels.
double product() {
    return median(200, [] {
        const double start = now();
        for (int n = 0; n < tiles / 2; n += 2) {
            LOAD(4, left + n * 512);
            LOAD(6, right + n * 512);
            LOAD(7, right + (n + 1) * 512);
            LOAD(5, left + (n + 1) * 512);
            for (int again = 0; again < 6; ++again) {
                MULTIPLY(0, 4, 6);
                MULTIPLY(1, 4, 7);
                MULTIPLY(2, 5, 6);
                MULTIPLY(3, 5, 7);
            }
        }
        asm volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(sums), "r"(64L) : "memory");
        return (now() - start) / (tiles / 4 * 24);
    });
}

// Nanoseconds of 16 products after some of rest.
double after_rest(double rest) {
    return median(500, [rest] {
        for (const double start = now(); now() - start < rest;) {
        }
        const double start = now();
        for (int n = 0; n < 4; ++n) {
            MULTIPLY(0, 4, 6);
            MULTIPLY(1, 4, 7);
            MULTIPLY(2, 5, 6);
            MULTIPLY(3, 5, 7);
        }
        asm volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(sums), "r"(64L) : "memory");
        _mm_lfence();
        return now() - start;
    });
}

#define FOUR(operation, a, b, c, d)                                                       \
    asm volatile(operation "%%zmm" #a "\n" operation "%%zmm" #b "\n" operation "%%zmm" #c \
                           "\n" operation "%%zmm" #d::)
#define SIXTEEN(operation)           \
    FOUR(operation, 16, 17, 18, 19); \
    FOUR(operation, 20, 21, 22, 23); \
    FOUR(operation, 24, 25, 26, 27); \
    FOUR(operation, 28, 29, 30, 31)

enum Vectors { none, multiply_adds, additions };

// Nanoseconds of 128 operations of 16 numbers each, with or without four products beside them.
double vectors(Vectors kind, bool products) {
    constexpr int times = 200;
    return median(200, [=] {
        asm volatile("vpxord %%zmm0, %%zmm0, %%zmm0" ::);
        const double start = now();
        for (int n = 0; n < times; ++n) {
            if (products) {
                MULTIPLY(0, 4, 6);
                MULTIPLY(1, 4, 7);
                MULTIPLY(2, 5, 6);
                MULTIPLY(3, 5, 7);
            }
            for (int part = 0; part < 8; ++part) {
                if (kind == multiply_adds) {
                    SIXTEEN("vfmadd213ps %%zmm0, %%zmm0, ");
                } else if (kind == additions) {
                    SIXTEEN("vpaddd %%zmm0, %%zmm0, ");
                }
            }
        }
        return (now() - start) / times;
    });
}

}  // namespace

int main() {
    if (syscall(SYS_arch_prctl, amx_permission, tile_data) != 0) {
        std::puts("this processor or kernel has no AMX");
        return 0;
    }
    struct {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } layout;
    asm volatile("ldtilecfg %0" ::"m"(layout));
    constexpr double operations = 2.0 * 16 * 16 * 32;
    const double zeros = product();
    std::mt19937 generator(0);
    std::normal_distribution<float> normal;
    for (auto* numbers : {left, right})
        for (int n = 0; n < tiles / 2 * 512; ++n) {
            const float x = normal(generator);
            numbers[n] = (uint16_t)(reinterpret_cast<const uint32_t&>(x) >> 16);
        }
    const double random = product();
    std::printf("products of zeros %.1f TFLOP/s, of random numbers %.1f TFLOP/s\n",
                operations / zeros / 1e3, operations / random / 1e3);
    const double awake = after_rest(0);
    for (const double rest : {200.0, 400.0, 500.0, 600.0, 800.0, 2000.0})
        std::printf("after %4.0f ns of rest: 16 products take %3.0f ns more\n", rest,
                    after_rest(rest) - awake);
    vectors(multiply_adds, true);
    const double four = vectors(none, true);
    for (const Vectors kind : {multiply_adds, additions})
        std::printf("128 %s of 16 numbers: %.0f ns, beside 4 products (%.0f ns) %.0f ns\n",
                    kind == multiply_adds ? "multiply-adds" : "additions of whole numbers",
                    vectors(kind, false), four, vectors(kind, true));
    asm volatile("tilerelease");
}
