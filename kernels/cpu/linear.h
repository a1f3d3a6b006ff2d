// A packed linear layer in any precision. Included by the kernel files inside their own namespace.

static void linear(const LinearTask& task) {
  const Operand& input = task.input;
  for (int panel = task.first_panel; panel < task.last_panel; ++panel) {
    if (task.weights->precision == Precision::int8)
      multiply_int8_panel(task, panel);
    else
      multiply_panel(
          *task.weights, panel, task.last_panel, task.rows, task.k_begin, task.k_end, task.activation,
          [&](int row) { return static_cast<const char*>(input.rows) + row * input.row_bytes; },
          task.output + static_cast<int64_t>(panel - task.base_panel) * kPanelWidth, task.output_stride);
  }
}
