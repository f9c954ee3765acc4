"""A server on a socket of its own, in a thread."""

import contextlib
import threading
import time

import uvicorn

from octavo.server.app import create_app
from octavo.server.protocol import BoundedProtocol
from octavo.server.serving import address, bind


@contextlib.contextmanager
def listening(llm, config):
    """The address, ending in /v1."""
    with bind(config) as listener:
        http = BoundedProtocol.within(config)
        server = uvicorn.Server(uvicorn.Config(create_app(llm, config), http=http, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        yield address(listener)
        server.should_exit = server.force_exit = True
        thread.join(10)
