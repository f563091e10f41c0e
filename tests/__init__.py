"""Tests of jaxgemm: one file per source file. Those marked ``gpu`` need a CUDA GPU and are skipped without one."""
