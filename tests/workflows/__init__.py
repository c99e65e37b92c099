"""Tests of habits: one module per habit, run over all formats that apply."""
