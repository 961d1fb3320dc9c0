"""The sender of the lmcache package itself, PDBackendAsync on a CPU, against the programs in bin/.

Its transfer channel is nixl, so real bytes go through scripts/nixl-target.
"""

import hashlib
import os
import subprocess
import sys
import threading
import types
import unittest

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.pd_backend_async import PDBackendAsync

from test_peers import BIN, PATIENCE, Case, endpoint

SCRIPT = BIN.parent / "scripts" / "nixl-target"
LAYERS, TOKENS, HEADS, HEAD = 32, 256, 8, 128  # Llama-3.1-8B
DTYPE = torch.bfloat16


def port(endpoint):
    return int(endpoint.rsplit(":", 1)[1])


class LMCache(Case):
    """One backend and one pd-recv for each test."""

    def start(self, slots, staging, tokens=TOKENS, layers=LAYERS):
        self.at, self.init, self.told = endpoint(), endpoint(), endpoint()
        shape = (layers, 2, tokens, HEADS, HEAD)
        self.chunk = layers * 2 * tokens * HEADS * HEAD * DTYPE.itemsize
        self.layers, self.tokens = layers, tokens
        self.recv = self.program("pd-recv", "--listen", self.at, "--monitor", "none", "--chunk-size", self.chunk,
                                 "--buffer-size", slots * self.chunk)
        self.proxy = self.program("pd-proxy", "--listen", self.told)
        target = self.program(sys.executable, SCRIPT, "--to", self.at, "--listen", self.init)
        target.line(lambda l: "listening" in l)
        config = LMCacheEngineConfig.from_defaults()
        for name, value in dict(
                enable_pd=True, pd_role="sender", pd_proxy_host="127.0.0.1", pd_proxy_port=port(self.told), chunk_size=tokens,
                pd_buffer_size=staging * self.chunk, pd_buffer_device="cpu", transfer_channel="nixl", nixl_backends=["UCX"]).items():
            setattr(config, name, value)
        self.backend = PDBackendAsync(config, LMCacheMetadata(
            model_name="llama", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0, kv_dtype=DTYPE,
            kv_shape=shape, chunk_size=tokens))

    def put(self, req_id, first, tokens, last, total):
        """A batch of chunks, each of so many tokens, from the chunk numbered
        first on. What is in them."""
        keys, objects, sent = [], [], b""
        for i, n in enumerate(tokens, first):
            key = int(hashlib.sha256(f"{req_id}-{i}".encode()).hexdigest()[:15], 16)
            keys.append(CacheEngineKey("llama", 1, 0, key, DTYPE))
            o = self.backend.allocate(torch.Size((2, self.layers, n, HEADS * HEAD)), DTYPE)
            self.assertIsNotNone(o, "no staging memory")
            content = torch.frombuffer(bytearray(os.urandom(o.tensor.nbytes)), dtype=torch.uint8)
            o.tensor.view(torch.uint8).view(-1).copy_(content)
            sent += content.numpy().tobytes()
            objects.append(o)
        self.backend.batched_submit_put_task(keys, objects, types.SimpleNamespace(
            req_id=req_id, receiver_host="127.0.0.1", receiver_init_port=[port(self.init)], receiver_alloc_port=[port(self.at)],
            is_last_prefill=last, total_chunks=total))
        for o in objects:
            o.ref_count_down()
        return sent

    def take(self, req_id):
        self.proxy.line(lambda l: l == req_id)
        p = subprocess.run([BIN / "pd-recv", "take", self.at, req_id], capture_output=True, timeout=PATIENCE)
        self.assertEqual(p.returncode, 0, p.stderr.decode())
        return p.stdout

    def same(self, got, sent):
        self.assertEqual((len(got), hashlib.sha256(got).hexdigest()), (len(sent), hashlib.sha256(sent).hexdigest()))

    def test_bytes(self):
        """In two batches, the last chunk of which is not full."""
        self.start(slots=8, staging=8)
        self.assertEqual(self.chunk, 32 << 20)
        sent = self.put("A", 0, [TOKENS, TOKENS], False, 3)
        sent += self.put("A", 2, [100], True, 3)
        self.same(self.take("A"), sent)
        self.assertEqual(self.stat(self.at)["slots"]["free"], 8)

    def test_requests_that_wait(self):
        """More than the buffer holds, and staging memory for less than a
        request: both sides wait, and every byte arrives."""
        self.start(slots=6, staging=3, tokens=64, layers=4)
        total, sent, failed = 4, {}, []

        def put():
            try:
                for r in range(8):
                    parts = [self.put(f"r{r}", i, [self.tokens], i == total - 1, total) for i in range(total)]
                    sent[f"r{r}"] = b"".join(parts)
            except BaseException as e:
                failed.append(e)
        thread = threading.Thread(target=put, daemon=True)
        thread.start()
        self.recv.event("queued", "r1")
        got = {f"r{r}": self.take(f"r{r}") for r in range(8)}
        thread.join(PATIENCE)
        self.assertFalse(failed, failed)
        for req_id in got:
            self.same(got[req_id], sent[req_id])
        self.assertEqual(self.stat(self.at)["slots"]["free"], 6)

    def test_cancel(self):
        self.start(slots=4, staging=4, tokens=16, layers=2)
        self.put("C", 0, [self.tokens], False, 3)
        self.recv.event("admitted", "C")
        self.backend.cancel_request("C")
        self.recv.event("cancelled", "C")
        self.assertEqual(self.stat(self.at)["slots"]["free"], 4)

    def test_refused(self):
        """Too large: it tells the proxy nothing and goes on with the next."""
        self.start(slots=2, staging=4, tokens=16, layers=2)
        self.put("large", 0, [self.tokens], False, 3)
        self.assertEqual(self.recv.event("rejected", "large")["code"], "too_large")
        sent = self.put("A", 0, [self.tokens], True, 1)
        self.same(self.take("A"), sent)
        self.assertEqual(self.proxy.lines, ["A"])


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.stdout.flush()
    os._exit(not result.wasSuccessful())  # LMCache's threads and NIXL's do not end by themselves
