"""Loading: requests into reads in flight, into batches, into tensors on the device."""
