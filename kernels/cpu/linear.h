// A packed linear layer in any precision. Included by the kernel files inside their own namespace.

constexpr Layout kFloatLayout = {kPanelWidth, kLanes, 1, 0, true, false};
#if defined(FASTSAL_MATRIX_TILES)
constexpr Layout kBfloat16Layout = {kMatrixPanelWidth, kMatrixPanelWidth, 2, 2, true, false};
constexpr Layout kInt8Layout = {kMatrixPanelWidth, kMatrixPanelWidth, 4, 1, true, false};
#else
constexpr Layout kBfloat16Layout = {kPanelWidth, kLanes, kBfloat16Depth, kBfloat16Bytes, kBfloat16Bytes > 0, false};
constexpr Layout kInt8Layout = {kInt8PanelWidth, kLanes, kInt8Depth, kInt8Bytes, kHasOffset, kBoundedPairs};
#endif

static void linear(const LinearTask& task) {
#if defined(FASTSAL_MATRIX_TILES)
  if (task.weights->precision != Precision::float32) return multiply_on_tiles(task);
#else
  if (task.weights->precision == Precision::int8) return multiply_int8(task);
#endif
  const Operand& input = task.input;
  for (int panel = task.first_panel; panel < task.last_panel; ++panel)
    multiply_panel(
        *task.weights, panel, task.last_panel, task.rows, task.k_begin, task.k_end, task.activation,
        [&](int row) { return static_cast<const char*>(input.rows) + row * input.row_bytes; },
        task.output + static_cast<int64_t>(panel - task.base_panel) * kPanelWidth, task.output_stride);
}
