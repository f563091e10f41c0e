"""jaxgemm inside the packages that JAX's users build with, one file for each, on the CPU or on a GPU as it is found."""
