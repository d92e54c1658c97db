// SPDX-License-Identifier: Apache-2.0
// Logits to experts on the device: a warp per row.
#pragma once
#include "check.h"
#include "device/cuda/device_router.h"

namespace moebius::cuda {

// ids, weights [rows, slots]; zero_weights [rows] or null; counts [experts] or null: how often each was chosen is added.
void route_rows(const DeviceRouter& router, const CudaRows& logits, int32_t* ids, float* weights,
                float* zero_weights, uint32_t* counts, cudaStream_t stream);

}  // namespace moebius::cuda
