# SPDX-License-Identifier: Apache-2.0
"""The live page in Chromium. Usage: live_browser.py URL KEY_FOLDER [SCREENSHOT_FOLDER]. Prints a word after each step, and
reads a line before the next one."""
import sys

from browser import Browser

url, keys = sys.argv[1:3]

# Texts whose contrast to their background is too low, widths beyond the window, images without a name.
FAULTS = r"""(() => {
  const faults = [], parse = (c) => c.match(/[\d.]+/g).map(Number);
  const part = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0.99) return c; } return [255, 255, 255]; };
  for (const e of document.querySelectorAll("body *")) {
    if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || e.closest("svg")) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(behind(e)), contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faults.push(e.textContent.slice(0, 40) + ": contrast " + contrast.toFixed(2));
    if (e.getBoundingClientRect().right > innerWidth + 1) faults.push(e.textContent.slice(0, 40) + ": beyond the window");
  }
  for (const e of document.querySelectorAll("svg[role=img]")) if (e.checkVisibility() && !e.getAttribute("aria-label")) faults.push("an image without a name");
  for (const e of document.querySelectorAll("table")) if (!e.querySelector("thead th[scope=col]") || !e.getAttribute("aria-labelledby")) faults.push("a table without headings");
  for (const e of document.querySelectorAll(".card, .wide")) if (e.checkVisibility() && e.scrollWidth > e.clientWidth) faults.push(e.textContent.trim().slice(0, 40) + ": wider than its card");
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page is wider than the window");
  return faults;
})()"""


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


def look(browser, name):
    """In all sizes and both schemes."""
    for kind, width, height, dark in (("light", 1200, 900, False), ("dark", 1200, 900, True), ("phone", 390, 844, False)):
        browser.view(width, height, dark)
        browser.wait("the page is laid out", "new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => resolve(true))))")
        faults = browser.evaluate(FAULTS)
        check(not faults, name, kind, faults)
        if len(sys.argv) > 3:
            browser.screenshot("%s/%s-%s.png" % (sys.argv[3], name, kind))
    browser.view(1200, 900)


def enter(browser, name):
    with open("%s/%s.key" % (keys, name), encoding="ascii") as file:
        enter_text(browser, file.read().strip())


def enter_text(browser, key):
    browser.wait("a key is asked for", "document.getElementById('key')?.hidden === false")
    browser.evaluate("document.getElementById('key-input').value = '%s'; document.querySelector('#key button').click()" % key)


def step(word):
    print(word, flush=True)
    sys.stdin.readline()


def text(browser):
    return browser.evaluate("document.body.innerText")


browser = Browser()
try:
    browser.view(1200, 900)
    browser.open(url)
    enter_text(browser, "Schl\u00fcssel \u2026")
    browser.wait("what cannot be a key is refused", "document.body.innerText.includes('printable ASCII')")
    enter(browser, "tenant")
    browser.wait("the tenant's key is refused", "document.body.innerText.includes('not an operator')")
    look(browser, "key")
    enter(browser, "operator")
    browser.wait("the cluster is shown", "document.getElementById('main').hidden === false")
    check("No node is attached yet" in text(browser), text(browser))
    check("No prompt has been packed yet" in text(browser), text(browser))
    look(browser, "empty")
    check(browser.evaluate("localStorage.length === 0 && document.cookie === '' && sessionStorage.length === 1"), "the key is kept for the tab alone")
    step("empty")

    browser.wait("two nodes are shown", "document.querySelectorAll('#node-rows tr').length === 2")
    browser.wait("both pools have bins", "document.querySelectorAll('.group').length === 2 && [...document.querySelectorAll('.group')].every((g) => g.querySelector('.bin') !== null)")
    browser.wait("a prompt was pruned", "document.querySelectorAll('.bin .kept-hatch').length && document.querySelectorAll('.bin .dropped').length")
    names = browser.evaluate("[...document.querySelectorAll('#node-rows th')].map((e) => e.textContent + e.children.length)")
    check("<b>&\"'0" in names, "a node's id is text", names)
    widths = browser.evaluate("""[...document.querySelectorAll('.bin svg')].map((svg) => { const room = svg.querySelector('.room').width.baseVal.value;
        return [...svg.querySelectorAll('.whole, .kept-base')].every((e) => e.x.baseVal.value + e.width.baseVal.value <= room + 1); })""")
    check(all(widths), "segments stay within their bin", widths)
    browser.wait("lines are drawn", "[...document.querySelectorAll('.spark .line')].filter((e) => e.getAttribute('d').length > 20).length >= 4")
    look(browser, "serving")
    refusals = [p for p in browser.problems if "a status of 40" in p]  # for the missing key and the tenant's key
    check(browser.problems == refusals and len(refusals) == 2, browser.problems)
    step("serving")

    browser.wait("the page says that the router is silent", "document.getElementById('state').textContent.includes('is silent')")
    check(browser.evaluate("document.body.classList.contains('stale')"), "the numbers are marked as old")
    step("silent")

    browser.wait("the page says that the router is gone", "document.getElementById('state').textContent.startsWith('not connected')")
    look(browser, "gone")
    step("gone")
finally:
    browser.close()
