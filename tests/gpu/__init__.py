"""What only a GPU can show.

``pytest tests/gpu tests/works_with --gpu-report`` writes ``tests/gpu_report.json`` if all passes.
"""
