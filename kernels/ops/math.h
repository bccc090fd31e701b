// Our own exp, log, sin and cos for everything that reaches a token or a log-probability: one
// polynomial for scalar and SIMD code, so bits do not change with the C library or the CPU. Pure
// functions, host side, any thread. Vector forms live in kernels/cpu.
#pragma once

#include <cstdint>

namespace brigade::kernels {

float exp_f32(float x);    // relative error below 4e-7 on [-87, 88]; 0 below, inf above
double exp_f64(double x);  // relative error below 1e-15 on the finite range
double log_f64(double x);  // x > 0; -inf at 0; relative error below 1e-15
double sin_f64(double x);  // |x| up to 2^30
double cos_f64(double x);

// Rope tables: cos and sin of position * inverse_frequencies[i], computed in f64, times magnitude,
// rounded to f32. cos_table, sin_table: [max_positions, half_dim].
void fill_rope_tables(const double* inverse_frequencies, int half_dim, int max_positions,
                      double magnitude, float* cos_table, float* sin_table);

}  // namespace brigade::kernels
