"""Chat templates that must not be run: name -> source. Each is refused at load, with exit code 65."""

BAD = {
    "syntax": "{{ 1 + }}",
    "dunder": "{{ ''.__class__.__mro__ }}",
    "dunder, silent": "{{ ''.__class__ }}",
    "dunder, not reached": "{% if messages | length > 3 %}{{ ''.__class__ }}{% endif %}",
    "attr": "{{ '' | attr('__class__') }}",
    "item": "{{ ''['__class__'] }}",
    "format": "{{ '{0.__class__}'.format(1) }}",
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested": "{% if true %}" * 5000 + "{% endif %}" * 5000,
    "nested far": "{% if true %}" * 50000 + "{% endif %}" * 50000,
    "source": "{# #}" * 1_000_000,
    "memory": "{{ 'a' * 10**10 }}",
    "output": "{{ 'a' * 2**23 }}",
    "undefined": "{{ messages[0].content.nope.x }}",
    "parentheses": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "mutation": "{{ messages.append(1) }}",
}
