// SPDX-License-Identifier: Apache-2.0
// Selects experts from logits on the device, one warp per row.
#pragma once
#include "check.h"
#include "device/cuda/device_router.h"

namespace moebius::cuda {

// Writes ids and weights [rows, slots]; zero_weights [rows] or null; counts [experts] or null: adds
// how often each expert was chosen.
void route_rows(const DeviceRouter& router, const CudaRows& logits, int32_t* ids, float* weights,
                float* zero_weights, uint32_t* counts, cudaStream_t stream);

}  // namespace moebius::cuda
